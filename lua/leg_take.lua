-- leg_take: lease legs, and find more.
--
-- A lease is on the leg: a token, and a time until which nobody else may take it.
--
-- Each take counts an attempt, which a return in good order gives back. A leg whose worker died so often, or whose
-- cancelling nobody carried out, ends here. A worker only asks for legs it does not hold: one that is leased to it
-- already comes from a call whose answer was lost, and is given again.
--
-- Uses      lib/now_ms.lua, lib/task.lua, lib/legs.lua
-- KEYS[1]   legs             ZSET    waiting and running legs -> when they may be taken
-- KEYS[2]   idle             ZSET    idle workers -> until when they count on being rung
-- KEYS[3..] t                HASH    a task for each address
-- ARGV[1]   worker           <node>:<worker>
-- ARGV[2]   lease_ms         the leases end then unless they are renewed
-- ARGV[3]   max_attempts     of a leg
-- ARGV[4]   outcome          of a task whose legs died so often
-- ARGV[5]   want             how many more to find
-- ARGV[6]   reserve_ms       what is found is kept from the others for so long
-- ARGV[7]   interest_ms      for so long the worker counts as idle
-- ARGV[8]   inboxes          prefix of the nodes' inbox channels
-- ARGV[9]   publish          PUBLISH | SPUBLISH
-- ARGV[10..] address         the tasks' names in indexes and signals
-- Replies   {{answer...}, {address...}, wait_ms}  one answer for each address; what to take next; when to look again
--           when less was found than wanted, 0: no leg waits. An answer is
--           {"leg", lease, attempt, leg, life_ms, session, call, context, state, {key, answer, ...}}
--           {"busy"} somebody else has it, or it may not start yet; {"gone"} nothing to do;
--           {"settled", session} it ended here, and whom to tell
-- Errors    WRONGTYPE a foreign key is in the way; nothing was taken
-- Cost      O((addresses + want) log legs)
local legs, idle = KEYS[1], KEYS[2]
local worker, lease_ms, max_attempts, outcome = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4]
local want, reserve_ms, interest_ms = tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7])
local inboxes, publish = ARGV[8], ARGV[9]

local now = now_ms()
-- Read all first: a foreign key must stop us before anything is taken.
redis.call('ZCARD', legs)
redis.call('ZREMRANGEBYSCORE', idle, '-inf', now)
local tasks = {}
for a = 10, #ARGV do tasks[a] = task_read(KEYS[a - 7]) or false end

local function take(t, f, address)
  if not f or f.terminal or not f.due_ms then
    redis.call('ZREM', legs, address)
    return { 'gone' }
  end
  local again = f.lease and string.sub(f.lease, 1, #worker + 1) == worker .. ':' and f.due_ms > now
  if f.due_ms > now and not again then
    redis.call('ZADD', legs, f.due_ms, address)
    return { 'busy' }
  end
  local ended = f.cancel == 1 and not again and 'cancelled' or f.attempts >= max_attempts and not again and 'failed'
  redis.call('HDEL', t, '')   -- a removal comes first, which a full server allows
  if ended then
    task_settle(t, f, legs, address, ended, ended == 'failed' and outcome or '', now)
    redis.call('HDEL', t, 'lease')
    ring_watchers(f, address, now, inboxes, publish)
    return { 'settled', f.session }
  end
  local takes = tonumber(redis.call('HGET', t, 'takes') or '0') + 1
  local lease, attempt = worker .. ':' .. takes, f.attempts + (again and 0 or 1)
  redis.call('HSET', t, 'lease', lease, 'takes', takes, 'attempts', attempt, 'due', now + lease_ms)
  task_extend(t, f, now)
  index_leg(legs, address, now + lease_ms, now, f.expires_ms)
  local answers = task_values(t, 'o:', f.asked)
  local stored = redis.call('HMGET', t, 'call', 'context', 'state')
  return { 'leg', lease, attempt, f.legs, f.expires_ms - now, f.session,
    stored[1] or '', stored[2] or '', stored[3] or '', answers }
end

local taken = {}
for a = 10, #ARGV do taken[#taken + 1] = take(KEYS[a - 7], tasks[a], ARGV[a]) end
local found, wait_ms = next_legs(legs, idle, worker, want, now, reserve_ms, interest_ms)
return { taken, found, wait_ms }
