-- dead_list: a page of a session's dead letters, oldest first. Reads only.
--
-- KEYS[1]   dead             LIST    the session's dead letters
-- ARGV[1]   offset           where the page begins
-- ARGV[2]   limit            length of the page
-- Replies   {total, entry...}  each entry `1 <died_ms> <reason length>\n<reason><record>`
-- Errors    WRONGTYPE a foreign key is in the way
-- Cost      O(offset + limit)
local dead = KEYS[1]
local offset, limit = tonumber(ARGV[1]), tonumber(ARGV[2])
local out = { redis.call('LLEN', dead) }
-- An end of -1 would mean all of them.
local page = limit > 0 and redis.call('LRANGE', dead, offset, offset + limit - 1) or {}
for i, entry in ipairs(page) do out[i + 1] = entry end
return out
