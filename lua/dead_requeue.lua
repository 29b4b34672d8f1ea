-- dead_requeue: put dead letters back at the end of their session's queue, with fresh attempts and a fresh life.
--
-- A letter in a format not understood stays where it is.
--
-- Uses      lib/now_ms.lua, lib/record.lua, lib/dead_entry.lua, lib/some.lua, lib/first.lua, lib/enqueue.lua
-- KEYS[1]   s                HASH    encoded session id -> owner token
-- KEYS[2]   w                ZSET    sessions with pending messages -> when to look again
-- KEYS[3]   q                LIST    the session's records
-- KEYS[4]   dead             LIST    the session's dead letters
-- ARGV[1]   sid              encoded session id
-- ARGV[2]   id               the message, or empty for all
-- ARGV[3]   ttl_ms           the messages' new time to live
-- ARGV[4]   max_pending      limit of the session's list
-- ARGV[5]   limit            most letters in this call
-- ARGV[6]   look_again_ms    how long a doorbell may stay unanswered
-- ARGV[7]   inboxes          prefix of the nodes' inbox channels
-- ARGV[8]   publish          PUBLISH | SPUBLISH
-- ARGV[9]   handoff_bytes    largest record that travels in the doorbell
-- Replies   {"requeued", count, left}  left: dead letters that stay
--           {"full", count, left}      the queue's limit was reached on the way
-- Errors    WRONGTYPE a foreign key is in the way; OOM the server is full; what was moved before stays moved
-- Cost      O(dead letters)
local s, w, q, dead = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local sid, id, ttl_ms, max_pending, limit = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
local look_again_ms, inboxes, publish, handoff_bytes = tonumber(ARGV[6]), ARGV[7], ARGV[8], tonumber(ARGV[9])

local pending = redis.call('LLEN', q)
local now = now_ms()
-- A receipt is time and id, and letters may share an id: each is put back at a moment of its own.
local last = pending > 0 and record_parse(redis.call('LINDEX', q, -1))
local taken = last and last.enqueued_ms < now + 60000 and last.enqueued_ms or 0
local at, count, word = 0, 0, 'requeued'
while count < limit do
  local entry = redis.call('LINDEX', dead, at)
  if not entry then break end
  local record, f = dead_parse(entry)
  if f and (id == '' or f.id == id) then
    if pending >= max_pending then
      word = 'full'
      break
    end
    -- As if queued now: an owner that died while it lay here was never given it.
    taken = math.max(now, taken + 1)
    f.enqueued_ms = taken
    local expires = now + ttl_ms
    local n = enqueue(q, s, w, sid, record_restate(record, f, expires, 0, 0, '', ''), expires, now,
      look_again_ms, inboxes, publish, handoff_bytes)
    if type(n) == 'table' then return n end
    redis.call('LREM', dead, 1, entry)
    pending, count = n, count + 1
  else
    at = at + 1
  end
end
return { word, count, redis.call('LLEN', dead) }
