-- event_read: what comes next in an event log, for its reader.
--
-- Uses      lib/small_writes.lua
-- KEYS[1]   me               ZSET    the log: number -> `<number>:<event>`
-- KEYS[2]   mf               HASH    facts about the log
-- ARGV[1]   token            who reads
-- ARGV[2]   after            number of the newest event that the reader has
-- ARGV[3]   limit            most events in one reply
-- ARGV[4]   max_bytes        about how many bytes in one reply; never less than one event
-- Replies   {"events", floor, event...}  each `<number>:<event>`; floor: newest number that was trimmed, 0: none
--           {"shadow"}                   somebody else reads this log
-- Errors    WRONGTYPE a foreign key is in the way
-- Cost      O(log events + events read)
local me, mf = KEYS[1], KEYS[2]
local token, after, limit, max_bytes = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
if redis.call('HGET', mf, 'reader') ~= token then return { 'shadow' } end

-- Who reads on after a number has what came before it.
if tonumber(after) > tonumber(redis.call('HGET', mf, 'given') or 0) then
  allow_small_writes(mf)
  redis.call('HSET', mf, 'given', after)
end
local out, bytes, full = { 'events', tonumber(redis.call('HGET', mf, 'floor') or 0) }, 0, false
while not full and #out - 2 < limit do
  local step = math.min(8, limit - (#out - 2))
  local some = redis.call('ZRANGEBYSCORE', me, '(' .. after, '+inf', 'LIMIT', 0, step)
  for _, event in ipairs(some) do
    if #out > 2 and bytes + #event > max_bytes then
      full = true
      break
    end
    out[#out + 1] = event
    bytes = bytes + #event
    after = string.match(event, '^(%d+):')
  end
  if #some < step then break end
end
return out
