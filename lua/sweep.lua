-- sweep: the safety net. Ring again for sessions whose doorbell stayed unanswered, and find what is stale.
--
-- The doorbell of a sweep is `?<sid>`: it says that an earlier one was not heard.
--
-- Cost does not depend on the number of idle sessions: the due part of `w` is a range, the walk through `s` is
-- rationed. Any number of nodes may sweep: the first one moves the due sessions on, the next finds none due.
--
-- Uses      lib/now_ms.lua
-- KEYS[1]   s                HASH    encoded session id -> owner token
-- KEYS[2]   w                ZSET    sessions with pending messages -> when to look again
-- KEYS[3]   n                ZSET    node -> deadline of its lease
-- ARGV[1]   look_again_ms    due sessions become due again then
-- ARGV[2]   limit            most due sessions in this call
-- ARGV[3]   inboxes          prefix of the nodes' inbox channels
-- ARGV[4]   publish          PUBLISH | SPUBLISH
-- ARGV[5]   grace_ms         a node is gone when its lease ended so long ago
-- ARGV[6]   cursor           where the walk through s goes on; 0: from the start
-- ARGV[7]   ration           about how many owners to look at
-- Replies   {rung, cursor, {sid...}, {sid, token, ...}}  doorbells rung; where to go on; due sessions that
--           nobody heard (for tidy); owners whose node is gone (for reap)
-- Errors    WRONGTYPE when s, w or n is a foreign key
-- Cost      O(log W + limit + ration)
local s, w, n = KEYS[1], KEYS[2], KEYS[3]
local look_again_ms, limit, inboxes, publish = tonumber(ARGV[1]), tonumber(ARGV[2]), ARGV[3], ARGV[4]
local grace_ms, cursor, ration = tonumber(ARGV[5]), ARGV[6], ARGV[7]

local now = now_ms()
local due = redis.call('ZRANGEBYSCORE', w, '-inf', now, 'LIMIT', 0, limit)
local page = redis.call('HSCAN', s, cursor, 'COUNT', ration)

local gone, dead_owners = {}, {}
for i = 1, #page[2], 2 do
  local node = string.match(page[2][i + 1], '^[^:]*')
  if gone[node] == nil then
    local deadline = redis.call('ZSCORE', n, node)
    gone[node] = not deadline or tonumber(deadline) + grace_ms < now
  end
  if gone[node] then
    dead_owners[#dead_owners + 1] = page[2][i]
    dead_owners[#dead_owners + 1] = page[2][i + 1]
  end
end

-- A node's lease stays for a while after the node is gone: its age decides whether a takeover counts a crash.
redis.call('ZREMRANGEBYSCORE', n, '-inf', now - 3600000)
local rung, unheard = 0, {}
for _, sid in ipairs(due) do
  local owner = redis.call('HGET', s, sid)
  -- One that nobody owns is found by the claim that takes it: it need not hold up those that ring.
  redis.call('ZADD', w, now + look_again_ms * (owner and 1 or 30), sid)
  local heard = owner and redis.pcall(publish, inboxes .. string.match(owner, '^[^:]*'), '?' .. sid)
  if type(heard) == 'number' and heard > 0 then rung = rung + 1 else unheard[#unheard + 1] = sid end
end
return { rung, page[1], unheard, dead_owners }
