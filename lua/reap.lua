-- reap: forget owners whose node is gone. What is pending stays, with one attempt counted on the head.
--
-- Uses      lib/now_ms.lua, lib/record.lua, lib/small_writes.lua, lib/crash.lua
-- KEYS[1]   s                HASH    encoded session id -> owner token
-- KEYS[2]   n                ZSET    node -> deadline of its lease
-- KEYS[3..] q                LIST    for each session: its records
-- ARGV[1]   grace_ms         a node is gone when its lease ended so long ago
-- ARGV[2..] sid token        for each session: encoded id, the owner that the sweep found
-- Replies   {reaped}         how many owners were forgotten
-- Errors    WRONGTYPE when s or n is a foreign key
-- Cost      O(log nodes) a session; O(size of the head) when an attempt is counted
local s, n = KEYS[1], KEYS[2]
local grace_ms = tonumber(ARGV[1])
local now = now_ms()
allow_small_writes(s)

local reaped = 0
for a = 2, #ARGV, 2 do
  local sid, token, q = ARGV[a], ARGV[a + 1], KEYS[2 + a / 2]
  local deadline = lease_deadline(n, string.match(token, '^[^:]*'))
  if redis.call('HGET', s, sid) == token and deadline + grace_ms < now then
    redis.call('HDEL', s, sid)
    pcall(count_crash, q, deadline)
    reaped = reaped + 1
  end
end
return { reaped }
