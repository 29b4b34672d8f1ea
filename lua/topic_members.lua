-- topic_members: a page of the sessions that take part in a topic.
--
-- A session that is there during the whole walk is answered, perhaps twice. Up to 512 sessions come in one page.
--
-- Uses      lib/now_ms.lua
-- KEYS[1]   m                HASH    encoded session id -> until when it is kept without an owner
-- KEYS[2]   s                HASH    encoded session id -> owner token
-- ARGV[1]   cursor           where the walk goes on; 0: from the start
-- ARGV[2]   ration           about how many sessions to look at
-- Replies   {cursor, {sid...}}  where to go on, 0 at the end; the sessions
-- Errors    WRONGTYPE when m or s is a foreign key
-- Cost      O(ration)
local m, s = KEYS[1], KEYS[2]
local now = now_ms()
local page = redis.call('HSCAN', m, ARGV[1], 'COUNT', ARGV[2])
local sids = {}
for i = 1, #page[2], 2 do
  local sid = page[2][i]
  if (tonumber(page[2][i + 1]) or 0) > now or redis.call('HGET', s, sid) then sids[#sids + 1] = sid end
end
return { page[1], sids }
