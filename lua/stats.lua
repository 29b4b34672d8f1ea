-- stats: what one session's queue looks like. Reads only.
--
-- Uses      lib/now_ms.lua, lib/record.lua
-- KEYS[1]   s                HASH    encoded session id -> owner token
-- KEYS[2]   n                ZSET    node -> deadline of its lease
-- KEYS[3..] q dead           LIST    for each session: its records, its dead letters
-- ARGV[1..] sid              for each session: encoded session id
-- Replies   one array a session, in order:
--           {pending, age_ms, attempts, wait_ms, dead, dead_age_ms, owner, lease_ms}
--           age_ms: of the oldest message, 0 when none; attempts and wait_ms: of the head; dead_age_ms: of the
--           oldest dead letter; owner: token or empty; lease_ms: what is left of its lease, negative: over
-- Errors    WRONGTYPE a foreign key is in the way
-- Cost      O(log nodes) a session
local s, n = KEYS[1], KEYS[2]
local now = now_ms()

-- Bounded: a record made by hand may hold any number, a reply may not.
local out = {}
for i, sid in ipairs(ARGV) do
  local q, dead = KEYS[1 + 2 * i], KEYS[2 + 2 * i]
  local pending = redis.call('LLEN', q)
  local head = pending > 0 and record_parse(redis.call('LINDEX', q, 0))
  local buried = redis.call('LINDEX', dead, 0)
  local died = buried and tonumber(string.match(buried, '^1 (%d+) '))
  local owner = redis.call('HGET', s, sid) or ''
  local deadline = tonumber(redis.call('ZSCORE', n, string.match(owner, '^[^:]*')) or now)
  out[i] = {
    pending, head and math.max(0, now - head.enqueued_ms) or 0, head and math.min(head.attempts, 1000000) or 0,
    head and math.max(0, math.min(head.not_before_ms - now, 86400000)) or 0,
    redis.call('LLEN', dead), died and now - died or 0, owner, deadline - now,
  }
end
return out
