-- topic_tidy: look at a page of the sessions of each topic: keep those that somebody owns, drop those that nobody
-- owned for too long, and forget topics without sessions.
--
-- Uses      lib/now_ms.lua, lib/small_writes.lua
-- KEYS[1]   s                HASH    encoded session id -> owner token
-- KEYS[2]   t                ZSET    topic -> when to look at its sessions again
-- KEYS[3..] m                HASH    for each topic: encoded session id -> until when it is kept without an owner
-- ARGV[1]   keep_ms          how long a session without an owner is kept, at most; at least it is half of that
-- ARGV[2]   ration           about how many sessions of each topic to look at
-- ARGV[3..] topic cursor     for each topic: its encoded name; where the walk goes on, 0: from the start
-- Replies   {cursor, dropped, ...}  for each topic: where to go on, 0 at the end; sessions dropped
-- Errors    WRONGTYPE when s or t is a foreign key; a topic with a foreign key in the way is passed over
-- Cost      O(ration + log topics) a topic
local s, t = KEYS[1], KEYS[2]
local keep_ms, ration = tonumber(ARGV[1]), ARGV[2]
local now = now_ms()
allow_small_writes(s)

local function tidy_one(m, topic, cursor)
  local page = redis.call('HSCAN', m, cursor, 'COUNT', ration)
  local dropped = 0
  for i = 1, #page[2], 2 do
    local sid, kept_until = page[2][i], tonumber(page[2][i + 1]) or 0
    if redis.call('HGET', s, sid) then
      -- Not by each look: what is good for more than three quarters stays as it is.
      if kept_until < now + keep_ms * 3 / 4 then redis.call('HSET', m, sid, now + keep_ms) end
    elseif kept_until <= now then
      dropped = dropped + redis.call('HDEL', m, sid)
    end
  end
  if redis.call('HLEN', m) == 0 then
    redis.call('ZREM', t, topic)
  else
    redis.call('PEXPIRE', m, 4 * keep_ms)
  end
  return { page[1], dropped }
end

local out = {}
for a = 3, #ARGV, 2 do
  local ok, one = pcall(tidy_one, KEYS[(a - 3) / 2 + 3], ARGV[a], ARGV[a + 1])
  out[#out + 1] = ok and one[1] or '0'
  out[#out + 1] = ok and one[2] or 0
end
return out
