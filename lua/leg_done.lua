-- leg_done: the leg finished its task. Only the holder of the lease can do that, once.
--
-- Uses      lib/now_ms.lua, lib/task.lua, lib/legs.lua
-- KEYS[1]   t                HASH    the task
-- KEYS[2]   legs             ZSET    waiting and running legs -> when they may be taken
-- KEYS[3]   idle             ZSET    idle workers -> until when they count on being rung
-- ARGV[1]   address          the task's name in indexes and signals
-- ARGV[2]   lease            the token of the lease
-- ARGV[3]   status           completed | failed | cancelled
-- ARGV[4]   outcome          the result or the error, opaque
-- ARGV[5]   message          status message; empty: the last one stays
-- ARGV[6]   worker           <node>:<worker>
-- ARGV[7]   want             how many legs to find for it
-- ARGV[8]   reserve_ms       what is found is kept from the others for so long
-- ARGV[9]   interest_ms      for so long the worker counts as idle
-- ARGV[10]  inboxes          prefix of the nodes' inbox channels
-- ARGV[11]  publish          PUBLISH | SPUBLISH
-- Replies   {word, {address...}, wait_ms}  done; fenced: somebody else has the leg or finished the task; gone: the task
--           expired, and no key was made. Then as leg_take
-- Errors    WRONGTYPE a foreign key is in the way; OOM the server is full; nothing is stored in either case
-- Cost      O(requests + want log legs)
local t, legs, idle = KEYS[1], KEYS[2], KEYS[3]
local address, lease, status, outcome, message = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local worker, want, reserve_ms, interest_ms = ARGV[6], tonumber(ARGV[7]), tonumber(ARGV[8]), tonumber(ARGV[9])
local inboxes, publish = ARGV[10], ARGV[11]

local now, word = now_ms(), 'done'
local f = task_read(t)
redis.call('ZCARD', legs)
redis.call('ZCARD', idle)   -- a foreign key in one of them must stop us before anything is stored
if not f then
  word = 'gone'
elseif f.lease ~= lease then
  word = 'fenced'
elseif not f.terminal then
  task_settle(t, f, legs, address, status, outcome, now)
  if message ~= '' then redis.call('HSET', t, 'message', message) end
end
local found, wait_ms = next_legs(legs, idle, worker, want, now, reserve_ms, interest_ms)
if word == 'done' and not f.terminal then ring_watchers(f, address, now, inboxes, publish) end
return { word, found, wait_ms }
