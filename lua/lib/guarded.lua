-- Run `one` for one of many; what it raises becomes that one's status, so that a foreign key in the way stops nobody
-- else. redis.pcall would not do: the work is many commands.
local function guarded(one, ...)
  local ok, reply = pcall(one, ...)
  if ok then return reply end
  return { 'error', type(reply) == 'table' and reply.err or tostring(reply) }
end
