-- task_cancel: end a task that nobody works on, or ask its worker to stop.
--
-- A finished task stays as it is. One that is parked or queued, or whose lease has run out, is cancelled here. The
-- holder of a lease is asked: it decides. What it waited for from the client is withdrawn.
--
-- Uses      lib/now_ms.lua, lib/task.lua, lib/legs.lua
-- KEYS[1]   t                HASH    the task
-- KEYS[2]   legs             ZSET    waiting and running legs -> when they may be taken
-- ARGV[1]   address          the task's name in indexes and signals
-- ARGV[2]   inboxes          prefix of the nodes' inbox channels
-- ARGV[3]   publish          PUBLISH | SPUBLISH
-- Replies   {word, session}  none: no such task; finished: it was, and is unchanged; cancelled: it is now; asked: its
--           worker was. Whom to tell
-- Errors    WRONGTYPE a foreign key is in the way
-- Cost      O(requests + log legs)
local t, legs = KEYS[1], KEYS[2]
local address, inboxes, publish = ARGV[1], ARGV[2], ARGV[3]

local f = task_read(t)
if not f then return { 'none', '' } end
if f.terminal then return { 'finished', f.session } end
local now = now_ms()
local works = f.lease and f.due_ms and f.due_ms > now
redis.call('ZCARD', legs)      -- a foreign key here must stop us before anything is stored
redis.call('HDEL', t, 'open')  -- a removal comes first, which a full server allows
if not works then
  task_settle(t, f, legs, address, 'cancelled', '', now)
  redis.call('HDEL', t, 'lease')
else
  redis.call('HSET', t, 'cancel', 1, 'status', 'working')
  task_changed(t, f, now)
  ring_holder(f.lease, address, inboxes, publish)
end
ring_watchers(f, address, now, inboxes, publish)
return { works and 'asked' or 'cancelled', f.session }
