-- session_watch: renew the MCP sessions that a replica holds and the event logs it reads, and say how they stand.
--
-- What is answered here is also rung when it happens; a bell may be lost, this look is not.
--
-- Uses      lib/now_ms.lua, lib/small_writes.lua
-- KEYS[1]   s                HASH    encoded session id -> owner token
-- KEYS[2]   n                ZSET    node -> deadline of its lease
-- KEYS[3..] ms me mf         for each: the session's state, an event log of it, facts about that log
-- ARGV[1]   session_ttl_ms   how long a state is kept without a sign of life
-- ARGV[2]   event_ttl_ms     how long a log is kept without one
-- ARGV[3]   inboxes          prefix of the nodes' inbox channels
-- ARGV[4]   publish          PUBLISH | SPUBLISH, to ask the owners' processes whether they listen; empty: their leases
--                            decide alone
-- ARGV[5..] sid token        for each: encoded session id; who reads the log here, empty: nobody
-- Replies   one array each, in order: {known, reader, last, owner, writer}
--           known: 1 when the session's state is there; reader: 1 when the token is the reader's; last: number of the
--           log's newest event, 0: none; owner, writer: of the session, and of the log: none | gone | alive
-- Errors    WRONGTYPE a foreign key is in the way
-- Cost      O(log nodes) each
local s, n = KEYS[1], KEYS[2]
local session_ttl_ms, event_ttl_ms = tonumber(ARGV[1]), tonumber(ARGV[2])
local inboxes, publish = ARGV[3], ARGV[4]
local now = now_ms()

local function state_of(token)
  local node = token and string.match(token, '^[^:.]+')
  if not node then return 'none' end
  return tonumber(redis.call('ZSCORE', n, node) or 0) > now and 'alive' or 'gone'
end

-- Whether anybody hears it tells at once if the process is gone; a sharded channel's count cannot be trusted.
local function owner_state(token)
  local state = state_of(token)
  if state == 'alive' and publish == 'PUBLISH' then
    local heard = redis.pcall(publish, inboxes .. string.match(token, '^[^:.]+'), '@mcp here')
    if heard == 0 then return 'gone' end
  end
  return state
end

local out = {}
for i = 1, (#ARGV - 4) / 2 do
  local ms, me, mf = KEYS[3 * i], KEYS[3 * i + 1], KEYS[3 * i + 2]
  local sid, token = ARGV[2 * i + 3], ARGV[2 * i + 4]
  local reader = redis.call('HGET', mf, 'reader')
  if token ~= '' and state_of(reader) ~= 'alive' then
    allow_small_writes(mf)
    redis.call('HSET', mf, 'reader', token)
    reader = token
  end
  redis.call('PEXPIRE', me, event_ttl_ms)
  redis.call('PEXPIRE', mf, event_ttl_ms)
  out[i] = {
    redis.call('PEXPIRE', ms, session_ttl_ms), reader == token and 1 or 0,
    tonumber(redis.call('HGET', mf, 'last') or 0),
    owner_state(redis.call('HGET', s, sid)), state_of(redis.call('HGET', mf, 'writer')),
  }
end
return out
