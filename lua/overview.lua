-- overview: counts over the whole partition, and a page of the sessions that have something pending. Reads only.
--
-- Uses      lib/now_ms.lua
-- KEYS[1]   s                HASH    encoded session id -> owner token
-- KEYS[2]   w                ZSET    sessions with pending messages -> when to look again
-- KEYS[3]   n                ZSET    node -> deadline of its lease
-- ARGV[1]   offset           where the page begins
-- ARGV[2]   limit            length of the page
-- Replies   {owned, waiting, {sid...}, {node, lease_ms, ...}}  owned: sessions with an owner; waiting: sessions
--           with pending messages; lease_ms: what is left of a node's lease, negative: over so long
-- Errors    WRONGTYPE when s, w or n is a foreign key
-- Cost      O(log W + limit + nodes)
local s, w, n = KEYS[1], KEYS[2], KEYS[3]
local offset, limit = tonumber(ARGV[1]), tonumber(ARGV[2])

local now = now_ms()
local nodes = redis.call('ZRANGE', n, 0, 999, 'WITHSCORES')
for i = 2, #nodes, 2 do nodes[i] = tonumber(nodes[i]) - now end
local page = limit > 0 and redis.call('ZRANGE', w, offset, offset + limit - 1) or {}
return { redis.call('HLEN', s), redis.call('ZCARD', w), page, nodes }
