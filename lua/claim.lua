-- claim: become the owner of sessions. The newest claim wins; the old owner is fenced and told so.
--
-- A takeover from an owner that nobody can reach any more counts one attempt on the head; from a living one,
-- or after a release, it counts none.
--
-- Uses      lib/now_ms.lua, lib/record.lua, lib/small_writes.lua, lib/crash.lua
-- KEYS[1]   s                HASH    encoded session id -> owner token `<node>:<epoch>`
-- KEYS[2]   n                ZSET    node -> deadline of its lease
-- KEYS[3..] q                LIST    for each session: its records
-- ARGV[1]   node             this process
-- ARGV[2]   mode             take | keep   keep: only what nobody else owns (after lost state)
-- ARGV[3]   inboxes          prefix of the nodes' inbox channels
-- ARGV[4]   publish          PUBLISH | SPUBLISH
-- ARGV[5..] sid              for each session: encoded session id
-- Replies   one array a session, in order:
--           {"claimed", epoch, pending}
--           {"fenced"}          mode keep, and another node owns it
--           {"error", text}     a foreign key is in the way
-- Errors    WRONGTYPE when s or n is a foreign key; nothing is claimed
-- Cost      O(1) a session; O(size of the head) when an attempt is counted
local s, n = KEYS[1], KEYS[2]
local node, mode, inboxes, publish = ARGV[1], ARGV[2], ARGV[3], ARGV[4]

local now = now_ms()
allow_small_writes(s)

-- The old owner hears its session's name and finds itself fenced at its next fetch. Whether anybody heard it
-- tells at once if the process is gone; a sharded channel's count cannot be trusted, there the lease decides.
local function alive(other, sid, deadline)
  local heard = redis.pcall(publish, inboxes .. other, sid)
  if publish == 'SPUBLISH' then return deadline > now end
  return type(heard) == 'number' and heard > 0
end

local function claim_one(q, sid)
  local old = redis.call('HGET', s, sid)
  local other = old and string.match(old, '^[^:]*')
  if other and other ~= node and mode == 'keep' then return { 'fenced' } end
  local pending = redis.call('LLEN', q)
  -- Begins at the clock: after a release or a loss, no token from before ever fits again.
  local epoch = math.max(now, (old and tonumber(string.match(old, ':(%d+)$')) or 0) + 1)
  redis.call('HSET', s, sid, node .. ':' .. string.format('%.0f', epoch))
  if other and other ~= node then
    local deadline = lease_deadline(n, other)
    if not alive(other, sid, deadline) and pending > 0 then count_crash(q, deadline) end
  end
  return { 'claimed', epoch, pending }
end

local out = {}
for i = 5, #ARGV do
  local ok, reply = pcall(claim_one, KEYS[i - 2], ARGV[i])
  out[#out + 1] = ok and reply or { 'error', type(reply) == 'table' and reply.err or tostring(reply) }
end
return out
