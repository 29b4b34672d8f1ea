-- event_open: become the reader of an event log. The newest reader wins; an older one reads nothing any more.
--
-- Uses      lib/small_writes.lua
-- KEYS[1]   mf               HASH    facts about the log
-- ARGV[1]   token            who reads, `<node>.<hub>:<number>`
-- ARGV[2]   must_exist       1: only a log that there is
-- ARGV[3]   ttl_ms           how long the log is kept without a sign of life
-- Replies   {"opened", given, floor}  given: newest number that any reader was given; floor: newest one that was
--           trimmed; 0 when there was none
--           {"unknown"}               there is no such log
-- Errors    WRONGTYPE a foreign key is in the way
-- Cost      O(1)
local mf = KEYS[1]
if ARGV[2] == '1' and redis.call('EXISTS', mf) == 0 then return { 'unknown' } end
allow_small_writes(mf)
redis.call('HSET', mf, 'reader', ARGV[1])
redis.call('PEXPIRE', mf, tonumber(ARGV[3]))
return { 'opened', tonumber(redis.call('HGET', mf, 'given') or 0), tonumber(redis.call('HGET', mf, 'floor') or 0) }
