-- session_load: the state of an MCP session, whose life this renews.
--
-- KEYS[1]   ms               STRING  the session's state, opaque
-- ARGV[1]   ttl_ms           how long it is kept without a sign of life
-- Replies   {"state", state}
--           {"unknown"}
-- Errors    WRONGTYPE a foreign key is in the way
-- Cost      O(1)
local ms = KEYS[1]
local state = redis.call('GET', ms)
if not state then return { 'unknown' } end
redis.call('PEXPIRE', ms, tonumber(ARGV[1]))
return { 'state', state }
