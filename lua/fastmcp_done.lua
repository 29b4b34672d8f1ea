-- fastmcp_done: messages that fastmcp_take answered are in our queues: remove them from the bridge's lists.
--
-- KEYS[1..] taken            LIST    for each message: the bridge's list that it is in
-- ARGV[1..] id               for each message: the id of its entry, oldest of a list first
-- Replies   {removed}        how many were still there
-- Errors    none of its own; a list with a foreign key in the way is passed over
-- Cost      O(1) a message
local function done_one(taken, id)
  local head = redis.call('LINDEX', taken, 0)
  if not head or string.sub(head, 1, #id + 1) ~= id .. ' ' then return 0 end
  redis.call('LPOP', taken)
  return 1
end

local removed = 0
for i, id in ipairs(ARGV) do
  local ok, one = pcall(done_one, KEYS[i], id)
  if ok then removed = removed + one end
end
return { removed }
