-- One command for several members of one key, `list[from..to]`: at most 256 words, since Lua's stack is small. Answers
-- the reply or the error, as redis.pcall does.
local function pcall_some(command, key, list, from, to)
  if to - from > 255 then return { err = 'ERR ' .. command .. ' with ' .. to - from + 1 .. ' words' } end
  return redis.pcall(command, key, unpack(list, from, to))
end
