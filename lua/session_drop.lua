-- session_drop: an MCP session is over: forget it, and tell the processes that work for it.
--
-- KEYS[1]   s                HASH    encoded session id -> owner token
-- KEYS[2]   ms               STRING  the session's state
-- KEYS[3]   me               ZSET    the event log of its standalone stream
-- KEYS[4]   mf               HASH    facts about that log
-- ARGV[1]   sid              encoded session id
-- ARGV[2]   inboxes          prefix of the nodes' inbox channels
-- ARGV[3]   publish          PUBLISH | SPUBLISH
-- Replies   {"dropped", known}  known: 1 when there was a state
-- Errors    WRONGTYPE a foreign key is in the way
-- Cost      O(events of the log)
local s, ms, me, mf = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local sid, inboxes, publish = ARGV[1], ARGV[2], ARGV[3]
local told, nodes = {}, {}
for _, token in ipairs({ redis.call('HGET', s, sid) or '', redis.call('HGET', mf, 'reader') or '' }) do
  local node = string.match(token, '^[^:.]+')
  if node and not told[node] then
    told[node] = true
    nodes[#nodes + 1] = node
  end
end
local known = redis.call('DEL', ms)
redis.call('DEL', me, mf)
for _, node in ipairs(nodes) do redis.pcall(publish, inboxes .. node, '@mcp end ' .. sid) end
return { 'dropped', known }
