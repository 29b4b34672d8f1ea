-- question_list: the open questions of sessions, the one that ends first in front. Reads only.
--
-- KEYS[1..] eo               ZSET    for each session: its open questions
-- ARGV[1]   offset           where the page begins
-- ARGV[2]   limit            length of the page
-- Replies   one array a session, in order: {rid...}   encoded request ids; one whose time is over may be among them
-- Errors    none of its own; a session with a foreign key in the way has no questions
-- Cost      O(log open questions + limit) a session
local offset, limit = tonumber(ARGV[1]), tonumber(ARGV[2])
local out = {}
for i, eo in ipairs(KEYS) do
  local page = limit > 0 and redis.pcall('ZRANGE', eo, offset, offset + limit - 1) or {}
  out[i] = page.err and {} or page
end
return out
