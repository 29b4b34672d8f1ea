-- leg_park: the leg ends with requests to the client; the next leg runs when all are answered. Nobody waits meanwhile.
--
-- Answers of the leg before are dropped here and not sooner: a leg that is run again needs them again. Without any
-- request the next leg is queued at once, to start after the delay.
--
-- Uses      lib/now_ms.lua, lib/task.lua, lib/legs.lua
-- KEYS[1]   t                HASH    the task
-- KEYS[2]   legs             ZSET    waiting and running legs -> when they may be taken
-- KEYS[3]   idle             ZSET    idle workers -> until when they count on being rung
-- ARGV[1]   address          the task's name in indexes and signals
-- ARGV[2]   lease            the token of the lease
-- ARGV[3]   state            for the next leg, opaque; may be empty
-- ARGV[4]   message          status message; empty: the last one stays
-- ARGV[5]   delay_ms         of the next leg when there is no request
-- ARGV[6]   worker           <node>:<worker>
-- ARGV[7]   want             how many legs to find for it
-- ARGV[8]   reserve_ms       what is found is kept from the others for so long
-- ARGV[9]   interest_ms      for so long the worker counts as idle
-- ARGV[10]  inboxes          prefix of the nodes' inbox channels
-- ARGV[11]  publish          PUBLISH | SPUBLISH
-- ARGV[12..] key request     encoded key, new in this task; the request's bytes
-- Replies   {word, {address...}, wait_ms}  parked; cancelled: the client had asked for it, the task is finished;
--           reused: a key was used before, nothing was written; fenced, gone: as leg_done. Then as leg_take
-- Errors    WRONGTYPE a foreign key is in the way; OOM the server is full; nothing is stored in either case
-- Cost      O(requests + want log legs)
local t, legs, idle = KEYS[1], KEYS[2], KEYS[3]
local address, lease, state, message, delay_ms = ARGV[1], ARGV[2], ARGV[3], ARGV[4], tonumber(ARGV[5])
local worker, want, reserve_ms, interest_ms = ARGV[6], tonumber(ARGV[7]), tonumber(ARGV[8]), tonumber(ARGV[9])
local inboxes, publish = ARGV[10], ARGV[11]

local now = now_ms()
local f = task_read(t)
redis.call('ZCARD', legs)
redis.call('ZCARD', idle)   -- a foreign key in one of them must stop us before anything is stored
local word, keys = 'parked', {}
for a = 12, #ARGV, 2 do
  keys[#keys + 1] = ARGV[a]
  if f and has_key(f.used, ARGV[a]) then word = 'reused' end
end
if not f then
  word = 'gone'
elseif f.terminal or f.lease ~= lease then
  word = 'fenced'
elseif f.cancel == 1 then
  word = 'cancelled'
  redis.call('HDEL', t, 'open')   -- a removal comes first, which a full server allows
  task_settle(t, f, legs, address, 'cancelled', '', now)
elseif word == 'parked' then
  local open = table.concat(keys, ' ')
  redis.call('HSET', t, 'state', state, 'open', open, 'asked', open, 'legs', f.legs + 1, 'attempts', 0)
  for a = 12, #ARGV, 2 do redis.call('HSET', t, 'i:' .. ARGV[a], ARGV[a + 1]) end
  redis.call('HSET', t, 'used', f.used .. (#keys > 0 and ' ' or '') .. open)
  if message ~= '' then redis.call('HSET', t, 'message', message) end
  task_forget(t, f.asked)
  redis.call('HDEL', t, 'lease')
  if #keys > 0 then
    redis.call('HSET', t, 'status', 'input_required')
    redis.call('HDEL', t, 'due')
    redis.call('ZREM', legs, address)
    task_changed(t, f, now)
  else
    redis.call('HSET', t, 'status', 'working', 'due', now + delay_ms)
    task_changed(t, f, now)
    index_leg(legs, address, now + delay_ms, now, f.expires_ms)
  end
end
local found, wait_ms = next_legs(legs, idle, worker, want, now, reserve_ms, interest_ms)
if word == 'parked' or word == 'cancelled' then ring_watchers(f, address, now, inboxes, publish) end
return { word, found, wait_ms }
