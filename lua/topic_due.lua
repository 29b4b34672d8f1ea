-- topic_due: topics whose sessions should be looked at. The first one that asks gets them, the next finds none due.
--
-- Uses      lib/now_ms.lua
-- KEYS[1]   t                ZSET    topic -> when to look at its sessions again
-- ARGV[1]   keep_ms          how long a session without an owner is kept; a look is due each quarter of it
-- ARGV[2]   limit            most topics
-- Replies   {topic...}
-- Errors    WRONGTYPE when t is a foreign key; OOM the server is full
-- Cost      O(log topics + limit)
local t, keep_ms = KEYS[1], tonumber(ARGV[1])
local now = now_ms()
local due = redis.call('ZRANGEBYSCORE', t, '-inf', now, 'LIMIT', 0, ARGV[2])
for _, topic in ipairs(due) do redis.call('ZADD', t, now + math.floor(keep_ms / 4), topic) end
redis.call('PEXPIRE', t, 4 * keep_ms)
return due
