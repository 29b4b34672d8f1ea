-- Run `one` for one of many; what it raises becomes that one's status, so that a foreign key in the way stops nobody
-- else. redis.pcall would not do: the work is many commands.
local function guarded(one, ...)
  local ok, reply = pcall(one, ...)
  if ok then return reply end
  return { 'error', type(reply) == 'table' and reply.err or tostring(reply) }
end

-- The same for items from..count by their numbers, with their answers in `out`; many at the price of one.
local function guarded_each(one, from, count, out)
  local i = from
  local function rest()
    while i <= count do
      out[i] = one(i)
      i = i + 1
    end
  end
  while i <= count do
    local ok, reply = pcall(rest)
    if not ok then
      out[i] = { 'error', type(reply) == 'table' and reply.err or tostring(reply) }
      i = i + 1
    end
  end
end
