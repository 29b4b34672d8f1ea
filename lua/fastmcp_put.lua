-- fastmcp_put: hand a message to a FastMCP 3 subscriber, once.
--
-- The expiry is set together with the message: FastMCP's own worker does that in a second command.
--
-- KEYS[1]   f                LIST    FastMCP's list of the session, its tail = next
-- KEYS[2]   d                STRING  present while the message may not be handed over again
-- ARGV[1]   text             the message in FastMCP's envelope
-- ARGV[2]   ttl_ms           life of the list from now on
-- ARGV[3]   dedupe_ms        how long a repetition is known
-- Replies   {"put" | "duplicate", pending}
-- Errors    WRONGTYPE a foreign key is in the way; OOM the server is full; nothing is handed over in either case
-- Cost      O(1)
local f, d = KEYS[1], KEYS[2]
local pending = redis.call('LLEN', f)
if not redis.call('SET', d, '', 'NX', 'PX', ARGV[3]) then return { 'duplicate', pending } end
local n = redis.pcall('LPUSH', f, ARGV[1])
if type(n) ~= 'number' then
  redis.call('DEL', d)
  return n
end
redis.call('PEXPIRE', f, ARGV[2])
return { 'put', n }
