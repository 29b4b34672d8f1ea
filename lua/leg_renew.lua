-- leg_renew: extend the leases of running legs, and learn what their workers should know.
--
-- A lease that ran out is renewed as long as nobody took the leg: its worker was slow, not dead.
--
-- Uses      lib/now_ms.lua, lib/task.lua, lib/legs.lua
-- KEYS[1]   legs             ZSET    waiting and running legs -> when they may be taken
-- KEYS[2..] t                HASH    a task for each address
-- ARGV[1]   lease_ms         the leases end then unless they are renewed again
-- ARGV[2..] address lease    the task's name, and the token of the lease
-- Replies   {{answer...}...}  one for each leg: {"held", cancel, life_ms, open}  cancel: 1 when the client wants it to
--           stop; life_ms: until the task expires; open: keys of the requests that wait for an answer.
--           {"fenced"} somebody else has the leg, or the task is finished; {"gone"} the task expired
-- Errors    WRONGTYPE a foreign key is in the way
-- Cost      O(legs in the call * log legs)
local legs = KEYS[1]
local lease_ms = tonumber(ARGV[1])

local now, answers = now_ms(), {}
redis.call('ZCARD', legs)
for a = 2, #ARGV, 2 do
  local t = KEYS[a / 2 + 1]
  local f = task_read(t)
  if not f then
    answers[#answers + 1] = { 'gone' }
  elseif f.terminal or f.lease ~= ARGV[a + 1] then
    answers[#answers + 1] = { 'fenced' }
  else
    redis.call('HDEL', t, '')   -- a removal comes first, which a full server allows
    redis.call('HSET', t, 'due', now + lease_ms)
    task_extend(t, f, now)
    index_leg(legs, ARGV[a], now + lease_ms, now, f.expires_ms)
    answers[#answers + 1] = { 'held', f.cancel, f.expires_ms - now, f.open }
  end
end
return answers
