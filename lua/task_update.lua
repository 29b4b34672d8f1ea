-- task_update: store answers to open requests; the last one starts the next leg, or wakes the leg that waits.
--
-- Keys that are not open are passed over: unknown, answered before, superseded. So of two updates that meet, one finds
-- the requests open and starts one leg.
--
-- Uses      lib/now_ms.lua, lib/task.lua, lib/legs.lua
-- KEYS[1]   t                HASH    the task
-- KEYS[2]   legs             ZSET    waiting and running legs -> when they may be taken
-- KEYS[3]   idle             ZSET    idle workers -> until when they count on being rung
-- ARGV[1]   address          the task's name in indexes and signals
-- ARGV[2]   inboxes          prefix of the nodes' inbox channels
-- ARGV[3]   publish          PUBLISH | SPUBLISH
-- ARGV[4..] key answer       encoded key of a request, the answer's bytes
-- Replies   {"none", 0, 0, ""}             no such task
--           {"ok", accepted, left, session}  how many were stored, how many requests are still open, whom to tell
-- Errors    WRONGTYPE a foreign key is in the way; OOM the server is full; no answer is stored in either case
-- Cost      O(answers + log legs)
local t, legs, idle = KEYS[1], KEYS[2], KEYS[3]
local address, inboxes, publish = ARGV[1], ARGV[2], ARGV[3]

local f = task_read(t)
if not f then return { 'none', 0, 0, '' } end
redis.call('ZCARD', legs)
redis.call('ZCARD', idle)   -- a foreign key in one of them must stop us before anything is stored
local answers = {}
for a = 4, #ARGV, 2 do
  if has_key(f.open, ARGV[a]) and not answers[ARGV[a]] then answers[ARGV[a]] = ARGV[a + 1] end
end
local left, accepted = {}, 0
for key in string.gmatch(f.open, '%S+') do
  if answers[key] then
    redis.call('HSET', t, 'o:' .. key, answers[key])
    accepted = accepted + 1
  else
    left[#left + 1] = key
  end
end
if accepted == 0 then return { 'ok', 0, #left, f.session } end

local now = now_ms()
redis.call('HSET', t, 'open', table.concat(left, ' '))
local parked = not f.due_ms
if #left == 0 then
  redis.call('HSET', t, 'status', 'working')
  if parked then redis.call('HSET', t, 'due', now) end
end
task_changed(t, f, now)
if parked and #left == 0 then
  index_leg(legs, address, now, now, f.expires_ms)
  ring_idle(idle, address, now, inboxes, publish)
elseif f.lease then
  ring_holder(f.lease, address, inboxes, publish)
end
ring_watchers(f, address, now, inboxes, publish)
return { 'ok', accepted, #left, f.session }
