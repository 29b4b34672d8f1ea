-- task_peek: where tasks stand, as an operator sees it. Writes nothing.
--
-- Uses      lib/now_ms.lua, lib/task.lua
-- KEYS[1..] t                HASH    the tasks
-- ARGV[1]   content          1: also what they were given, asked and answered, and how they ended
-- Replies   {now_ms, task...}  one for each key; {} is none. A task is {status, created_ms, updated_ms, expires_ms, rev,
--           attempts, leg, due_ms, lease, cancel, open, message, session, retried}, due_ms 0: no leg waits or runs;
--           with content also {call, outcome, {key, request, ...}, {key, answer, ...}}
-- Errors    WRONGTYPE a foreign key is in the way
-- Cost      O(keys + content)
local out = { now_ms() }
for i, t in ipairs(KEYS) do
  local f, task = task_read(t), {}
  if f then
    local more = redis.call('HMGET', t, 'updated', 'message', 'retried')
    task = { f.status, f.created_ms, tonumber(more[1]), f.expires_ms, f.rev, f.attempts, f.legs, f.due_ms or 0,
      f.lease or '', f.cancel, f.open, more[2] or '', f.session, more[3] or '' }
    if ARGV[1] == '1' then
      local content, n = redis.call('HMGET', t, 'call', 'outcome'), #task
      task[n + 1], task[n + 2] = content[1] or '', content[2] or ''
      task[n + 3], task[n + 4] = task_values(t, 'i:', f.open), task_values(t, 'o:', f.asked)
    end
  end
  out[i + 1] = task
end
return out
