-- pop: what is next for sessions this node owns; the records stay in their lists until acked.
--
-- Renews the node's lease, so that a process that fetches is a process that lives (pop-with-heartbeat). A lease
-- that is not there is left to the heartbeat, which thereby learns that state was lost.
--
-- Uses lib/now_ms.lua, lib/record.lua, lib/small_writes.lua, lib/bury.lua, lib/owner.lua, lib/next.lua, lib/guarded.lua
-- KEYS[1]   s                HASH    encoded session id -> owner token
-- KEYS[2]   w                ZSET    sessions with pending messages -> when to look again
-- KEYS[3]   n                ZSET    node -> deadline of its lease
-- KEYS[4..] q dead           LIST    for each session: its records, its dead letters
-- ARGV[1]   node             this process
-- ARGV[2]   lease_ms         the lease is renewed to now + lease_ms
-- ARGV[3]   look_again_ms    when a sweep may ring again for what stays pending
-- ARGV[4]   max_attempts     a head with so many attempts is a dead letter
-- ARGV[5]   dead_cap         limit of a dead letter list
-- ARGV[6]   dead_ttl_ms      life of a dead letter list
-- ARGV[7]   order            fifo | tail
-- ARGV[8]   budget           about how many bytes of records the whole reply may carry
-- ARGV[9..] sid epoch want   for each session: encoded id, epoch of our claim, most records
-- Replies   one array a session, in order:
--           {"ok", wait_ms, 0, expired, buried, record...}  no record and wait_ms 0: nothing is pending
--           {"more", 0, 0, expired, buried}                 the reply is full: ask again
--           {"fenced"} another node owns it; {"lost"} nobody owns it; {"error", text} foreign key in the way
-- Errors    none of its own
-- Cost      O(log N) a session and O(1) a record
local s, w, n = KEYS[1], KEYS[2], KEYS[3]
local node, lease_ms, look_again_ms = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local o = {
  max_attempts = tonumber(ARGV[4]), dead_cap = tonumber(ARGV[5]), dead_ttl_ms = ARGV[6],
  order = ARGV[7], budget = tonumber(ARGV[8]),
}

local now = now_ms()
allow_small_writes(s)
redis.pcall('ZADD', n, 'XX', now + lease_ms, node)

local function pop_one(q, dead, sid, epoch, want)
  local owner = ownership(s, sid, node .. ':' .. epoch)
  if owner ~= 'held' then return { owner } end
  local reply = next_reply(q, dead, w, sid, now, o, want, 0, 0)
  if #reply > 5 or reply[2] > 0 or reply[1] == 'more' then redis.call('ZADD', w, now + look_again_ms, sid) end
  return reply
end

local out = {}
local k, a = 4, 9
while ARGV[a] do
  out[#out + 1] = guarded(pop_one, KEYS[k], KEYS[k + 1], ARGV[a], ARGV[a + 1], tonumber(ARGV[a + 2]))
  k, a = k + 2, a + 3
end
return out
