-- session_save: keep what another replica needs to take an MCP session over.
--
-- KEYS[1]   ms               STRING  the session's state, opaque
-- ARGV[1]   state            opaque bytes
-- ARGV[2]   ttl_ms           how long it is kept without a sign of life
-- Replies   {"saved"}
-- Errors    OOM the server is full; nothing is kept
-- Cost      O(1)
redis.call('SET', KEYS[1], ARGV[1], 'PX', tonumber(ARGV[2]))
return { 'saved' }
