-- topic_ring: hand a message to every node that listens to its topic. Best effort: nothing is stored.
--
-- A node whose lease is over and whom nobody hears is taken off the list.
--
-- Uses      lib/now_ms.lua
-- KEYS[1]   l                HASH    listening node -> nothing
-- KEYS[2]   n                ZSET    node -> deadline of its lease
-- ARGV[1]   inboxes          prefix of the nodes' inbox channels
-- ARGV[2]   publish          PUBLISH | SPUBLISH
-- ARGV[3]   payload          what goes into each inbox
-- Replies   {heard}          how many nodes heard it
-- Errors    WRONGTYPE when l or n is a foreign key
-- Cost      O(nodes), at most about 8,000 of them
local l, n = KEYS[1], KEYS[2]
local inboxes, publish, payload = ARGV[1], ARGV[2], ARGV[3]

local now = now_ms()
local nodes, cursor = {}, '0'
for _ = 1, 64 do
  local page = redis.call('HSCAN', l, cursor, 'COUNT', 128)
  for i = 1, #page[2], 2 do nodes[page[2][i]] = true end
  cursor = page[1]
  if cursor == '0' then break end
end
local sorted = {}
for node in pairs(nodes) do sorted[#sorted + 1] = node end
table.sort(sorted)

local heard = 0
for _, node in ipairs(sorted) do
  local got = redis.pcall(publish, inboxes .. node, payload)
  if type(got) == 'number' and got > 0 then
    heard = heard + 1
  elseif tonumber(redis.call('ZSCORE', n, node) or '0') < now then
    redis.call('HDEL', l, node)
  end
end
return { heard }
