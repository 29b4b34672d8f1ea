-- heartbeat: renew this node's lease and ring its own doorbell, which proves the whole delivery path.
--
-- The index of nodes goes with the last of them: an hour after its lease, as long as a sweep would keep it.
--
-- Uses      lib/now_ms.lua, lib/small_writes.lua, lib/owner.lua
-- KEYS[1]   s                HASH    encoded session id -> owner token
-- KEYS[2]   n                ZSET    node -> deadline of its lease
-- ARGV[1]   node             this process
-- ARGV[2]   lease_ms         the lease is renewed to now + lease_ms
-- ARGV[3]   inboxes          prefix of the nodes' inbox channels
-- ARGV[4]   publish          PUBLISH | SPUBLISH
-- ARGV[5]   beat             number that travels in the doorbell as `!<beat>`
-- ARGV[6..] sid epoch        sessions we own, to see if owners were lost or changed: encoded id, epoch of our claim
-- Replies   {known, heard, now_ms, {owner...}}  known: 1 when the lease was still there, 0 when it had to be made
--           anew; heard: receivers of the doorbell, -1 when the server refuses to publish it; owner: held | fenced |
--           lost, one for each session
-- Errors    WRONGTYPE when s or n is a foreign key
-- Cost      O(log nodes), and O(1) a session
local s, n = KEYS[1], KEYS[2]
local node, lease_ms, inboxes, publish, beat = ARGV[1], tonumber(ARGV[2]), ARGV[3], ARGV[4], ARGV[5]

local now = now_ms()
local owners = {}
for a = 6, #ARGV, 2 do owners[#owners + 1] = ownership(s, ARGV[a], node .. ':' .. ARGV[a + 1]) end
local known = redis.call('ZSCORE', n, node) and 1 or 0
allow_small_writes(s)
redis.call('ZADD', n, now + lease_ms, node)
redis.call('PEXPIRE', n, 3600000 + lease_ms)
local heard = redis.pcall(publish, inboxes .. node, '!' .. beat)
return { known, type(heard) == 'number' and heard or -1, now, owners }
