-- event_close: the reader of an event log is gone, in good order.
--
-- Uses      lib/small_writes.lua
-- KEYS[1]   mf               HASH    facts about the log
-- ARGV[1]   token            who read
-- ARGV[2]   after            number of the newest event that it was given
-- Replies   {"closed"}
--           {"other"}   it was not the reader
-- Errors    WRONGTYPE a foreign key is in the way
-- Cost      O(1)
local mf = KEYS[1]
if redis.call('HGET', mf, 'reader') ~= ARGV[1] then return { 'other' } end
allow_small_writes(mf)
redis.call('HDEL', mf, 'reader')
-- An empty hash is gone, and nobody would renew it.
if redis.call('EXISTS', mf) == 1 and tonumber(ARGV[2]) > tonumber(redis.call('HGET', mf, 'given') or 0) then
  redis.call('HSET', mf, 'given', ARGV[2])
end
return { 'closed' }
