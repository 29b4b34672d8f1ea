-- release: give sessions back in good order. Compare-and-delete: a newer owner's claim is never touched.
--
-- Pending messages stay where they are; no attempt is counted.
--
-- Uses      lib/owner.lua
-- KEYS[1]   s                HASH    encoded session id -> owner token
-- ARGV[1]   node             this process
-- ARGV[2..] sid epoch        for each session: encoded session id, epoch of our claim
-- Replies   {"released" | "fenced" | "lost", ...}  one word a session, in order
-- Errors    WRONGTYPE when s is a foreign key
-- Cost      O(1) a session
local s, node = KEYS[1], ARGV[1]
local out = {}
for a = 2, #ARGV, 2 do
  local sid = ARGV[a]
  local owner = ownership(s, sid, node .. ':' .. ARGV[a + 1])
  if owner == 'held' then
    redis.call('HDEL', s, sid)
    owner = 'released'
  end
  out[#out + 1] = owner
end
return out
