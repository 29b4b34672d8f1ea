-- fastmcp_answer: give the answer to a FastMCP 3 worker that waits for it. Only the first one counts.
--
-- The state is set before the worker can wake: FastMCP's own relay does it after, and may then hit the next question.
--
-- KEYS[1]   status           STRING  `waiting` while the worker waits
-- KEYS[2]   response         LIST    the worker blocks on it
-- ARGV[1]   text             {"action":…,"content":…} as JSON
-- ARGV[2]   ttl_ms           life of both
-- Replies   {"given" | "late"}  late: nobody waits, or somebody answered before
-- Errors    WRONGTYPE a foreign key is in the way; OOM the server is full; nothing is given in either case
-- Cost      O(1)
local status, response, ttl_ms = KEYS[1], KEYS[2], ARGV[2]
redis.call('LLEN', response)
if redis.call('GET', status) ~= 'waiting' then return { 'late' } end
redis.call('SET', status, 'responded', 'PX', ttl_ms)
redis.call('LPUSH', response, ARGV[1])
redis.call('PEXPIRE', response, ttl_ms)
return { 'given' }
