-- leg_return: the leg did not end. It is run again: after a failure, which counts, or given back in good order.
--
-- Uses      lib/now_ms.lua, lib/task.lua, lib/legs.lua
-- KEYS[1]   t                HASH    the task
-- KEYS[2]   legs             ZSET    waiting and running legs -> when they may be taken
-- KEYS[3]   idle             ZSET    idle workers -> until when they count on being rung
-- ARGV[1]   address          the task's name in indexes and signals
-- ARGV[2]   lease            the token of the lease
-- ARGV[3]   mode             retry: a failed attempt | release: no attempt
-- ARGV[4]   delay_ms         retry: pause before the next attempt
-- ARGV[5]   max_attempts     of a leg; the last one's failure is the task's
-- ARGV[6]   outcome          the error that the task then ends with
-- ARGV[7]   message          status message; empty: the last one stays
-- ARGV[8]   worker           <node>:<worker>
-- ARGV[9]   want             how many legs to find for it; 0 when it stops
-- ARGV[10]  reserve_ms       what is found is kept from the others for so long
-- ARGV[11]  interest_ms      for so long the worker counts as idle
-- ARGV[12]  inboxes          prefix of the nodes' inbox channels
-- ARGV[13]  publish          PUBLISH | SPUBLISH
-- Replies   {word, {address...}, wait_ms}  returned; failed: that was the last attempt; cancelled: the client had asked
--           for it; fenced, gone: as leg_done. Then as leg_take
-- Errors    WRONGTYPE a foreign key is in the way; nothing was changed
-- Cost      O(requests + want log legs)
local t, legs, idle = KEYS[1], KEYS[2], KEYS[3]
local address, lease, mode, delay_ms = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
local max_attempts, outcome, message = tonumber(ARGV[5]), ARGV[6], ARGV[7]
local worker, want, reserve_ms, interest_ms = ARGV[8], tonumber(ARGV[9]), tonumber(ARGV[10]), tonumber(ARGV[11])
local inboxes, publish = ARGV[12], ARGV[13]

local now, word = now_ms(), 'returned'
local f = task_read(t)
redis.call('ZCARD', legs)
redis.call('ZCARD', idle)   -- a foreign key in one of them must stop us before anything is stored
if not f then
  word = 'gone'
elseif f.terminal or f.lease ~= lease then
  word = 'fenced'
else
  redis.call('HDEL', t, '')   -- a removal comes first, which a full server allows
  if message ~= '' then redis.call('HSET', t, 'message', message) end
  if f.cancel == 1 then
    word = 'cancelled'
  elseif mode == 'retry' and f.attempts >= max_attempts then
    word = 'failed'
  end
  if word ~= 'returned' then
    task_settle(t, f, legs, address, word, word == 'failed' and outcome or '', now)
  else
    local due = mode == 'retry' and now + delay_ms or now
    local attempts = mode == 'retry' and f.attempts or math.max(0, f.attempts - 1)
    redis.call('HSET', t, 'due', due, 'attempts', attempts)
    redis.call('HDEL', t, 'lease')
    task_extend(t, f, now)
    index_leg(legs, address, due, now, f.expires_ms)
  end
end
local found, wait_ms = next_legs(legs, idle, worker, want, now, reserve_ms, interest_ms)
if word == 'returned' and mode == 'release' then ring_idle(idle, address, now, inboxes, publish) end
if word == 'failed' or word == 'cancelled' then ring_watchers(f, address, now, inboxes, publish) end
return { word, found, wait_ms }
