-- task_tell: who tells the session of a task about its newest state. One at a time, so that states are queued in order.
--
-- The session's queue may be in another partition, so that this cannot queue the state itself. Called before: may I?
-- Called after: that change was told; is there a newer one? Who may not need not: the one who tells asks again.
--
-- Uses      lib/now_ms.lua, lib/task.lua
-- KEYS[1]   t                HASH    the task
-- ARGV[1]   teller           who asks, new for each round of telling
-- ARGV[2]   told             number of the change that it told, 0: none yet
-- ARGV[3]   hold_ms          the right to tell ends then, should the teller die
-- Replies   {"tell", rev}  read the task and queue its state; {"other", 0}  somebody else tells; {"done", 0}  the
--           newest state is told; {"none", 0}  no such task
-- Errors    WRONGTYPE a foreign key is in the way
-- Cost      O(1)
local t = KEYS[1]
local teller, told, hold_ms = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])

local f = task_read(t)
if not f then return { 'none', 0 } end
local now = now_ms()
local held = redis.call('HMGET', t, 'teller', 'teller_until', 'told')
if held[1] and held[1] ~= teller and tonumber(held[2]) > now then return { 'other', 0 } end
told = math.max(told, tonumber(held[3] or '0'))
redis.call('HDEL', t, 'teller', 'teller_until')
redis.call('HSET', t, 'told', told)
if told >= f.rev then return { 'done', 0 } end
redis.call('HSET', t, 'teller', teller, 'teller_until', now + hold_ms)
return { 'tell', f.rev }
