-- task_watch: this node wants to hear of every change of some tasks, for a while. A signal is a hint: the number of the
-- last change tells what was missed.
--
-- Uses      lib/now_ms.lua, lib/task.lua
-- KEYS[1..] t                HASH    a task for each address
-- ARGV[1]   node             this process
-- ARGV[2]   watch_ms         for how long; 0: no more
-- Replies   {rev, ...}       the number of each task's last change, 0: no such task
-- Errors    WRONGTYPE a foreign key is in the way
-- Cost      O(tasks)
local node, watch_ms = ARGV[1], tonumber(ARGV[2])

local now, revs = now_ms(), {}
for i, t in ipairs(KEYS) do
  local f = task_read(t)
  revs[i] = f and f.rev or 0
  if f then
    local others = {}
    for other, deadline in string.gmatch(f.watch, '([^%s:]+):(%d+)') do
      -- Bounded: the ones that renewed last stay.
      if other ~= node and tonumber(deadline) > now and #others < 31 then
        others[#others + 1] = other .. ':' .. deadline
      end
    end
    redis.call('HDEL', t, 'watch')
    if watch_ms > 0 then table.insert(others, 1, string.format('%s:%.0f', node, now + watch_ms)) end
    if #others > 0 then redis.call('HSET', t, 'watch', table.concat(others, ' ')) end
  end
end
return revs
