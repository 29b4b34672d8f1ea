-- topic_join: a session takes part in topics from now on.
--
-- It does so as long as somebody owns it, and keep_ms longer. Joining again changes nothing but the time.
--
-- Uses      lib/now_ms.lua
-- KEYS[1]   t                ZSET    topic -> when to look at its sessions again
-- KEYS[2..] m                HASH    for each topic: encoded session id -> until when it is kept without an owner
-- ARGV[1]   sid              encoded session id
-- ARGV[2]   keep_ms          how long a session without an owner is kept
-- ARGV[3..] topic            for each topic: its encoded name
-- Replies   {joined}         in how many topics the session is new
-- Errors    WRONGTYPE a foreign key is in the way; OOM the server is full; it may have joined some of the topics
-- Cost      O(log topics) a topic
local t, sid, keep_ms = KEYS[1], ARGV[1], tonumber(ARGV[2])
local now = now_ms()
for i = 2, #KEYS do redis.call('HLEN', KEYS[i]) end
local joined = 0
for i = 3, #ARGV do
  local m = KEYS[i - 1]
  redis.call('ZADD', t, 'NX', now + math.floor(keep_ms / 4), ARGV[i])
  joined = joined + redis.call('HSET', m, sid, now + keep_ms)
  redis.call('PEXPIRE', m, 4 * keep_ms)
end
redis.call('PEXPIRE', t, 4 * keep_ms)
return { joined }
