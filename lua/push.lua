-- push: store a message with its own time to live and wake the session's owner.
--
-- Decides everything first: a refused push has written nothing. The first write adds memory, so a full server
-- refuses it whole (OOM).
--
-- Uses      lib/now_ms.lua, lib/record.lua, lib/enqueue.lua
-- KEYS[1]   q                LIST    the session's records, head = next
-- KEYS[2]   s                HASH    encoded session id -> owner token
-- KEYS[3]   w                ZSET    sessions with pending messages -> when to look again
-- KEYS[4]   d                STRING  present while the message id may not be queued again
-- ARGV[1]   sid              encoded session id
-- ARGV[2]   id               message id, 1 or more bytes
-- ARGV[3]   body             opaque bytes
-- ARGV[4]   ttl_ms           > 0, the message's own
-- ARGV[5]   dedupe_ms        window in which the id is refused as a duplicate; 0: none, d is left alone
-- ARGV[6]   max_pending      limit of the session's list
-- ARGV[7]   policy           refuse | drop_oldest
-- ARGV[8]   coalesce         key under which a newer message replaces a pending one; empty: none
-- ARGV[9]   trace            trace context, opaque; may be empty
-- ARGV[10]  look_again_ms    how long a doorbell may stay unanswered
-- ARGV[11]  inboxes          prefix of the nodes' inbox channels
-- ARGV[12]  publish          PUBLISH | SPUBLISH
-- ARGV[13]  handoff_bytes    largest record that travels in the doorbell
-- Replies   {"queued", pending, heard, dropped}  heard: receivers of the doorbell, -1 when none was needed
--           {"coalesced", pending, -1, 0}        it took the place of an older one with the same key
--           {"duplicate", pending, -1, 0}        the id is known in its window; nothing was written
--           {"full", pending, -1, 0}             policy refuse; nothing was written
-- Errors    WRONGTYPE a foreign key is in the way; OOM the server is full; nothing is queued in either case
-- Cost      O(1); with a coalescing key O(n) over the newest 1,024 pending records
local q, s, w, d = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local sid, id, body, ttl_ms, dedupe_ms = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5])
local max_pending, policy, coalesce, trace = tonumber(ARGV[6]), ARGV[7], ARGV[8], ARGV[9]
local look_again_ms, inboxes, publish, handoff_bytes = tonumber(ARGV[10]), ARGV[11], ARGV[12], tonumber(ARGV[13])

-- Where a pending record with the same coalescing key stands. Never the head: it may be on its way already.
local function find_coalesced(pending)
  local from, size = math.max(1, pending - 1024), #body
  while from < pending do
    -- So many at a time as fit into a mebibyte, by the size of the one before.
    local step = math.max(1, math.min(64, math.floor(1048576 / (size + 64))))
    for i, r in ipairs(redis.call('LRANGE', q, from, from + step - 1)) do
      local f = record_parse(r)
      size = #r
      if f then
        local at = f.head + f.id_len
        if f.coalesce_len == #coalesce and string.sub(r, at + 1, at + f.coalesce_len) == coalesce then
          return from + i - 1
        end
      end
    end
    from = from + step
  end
  return nil
end

local pending = redis.call('LLEN', q)
local slot = coalesce ~= '' and pending > 1 and find_coalesced(pending) or nil
if not slot and pending >= max_pending and policy ~= 'drop_oldest' then
  local known = dedupe_ms > 0 and redis.call('EXISTS', d) == 1
  return { known and 'duplicate' or 'full', pending, -1, 0 }
end
if dedupe_ms > 0 then
  local new = redis.pcall('SET', d, '', 'NX', 'PX', dedupe_ms)
  local refused = type(new) == 'table' and new.err
  -- A full server refuses the write before it looks whether the id is known.
  if not new or refused and redis.call('EXISTS', d) == 1 then return { 'duplicate', pending, -1, 0 } end
  if refused then return new end
end

local now = now_ms()
local expires = now + ttl_ms
-- Without a window an id may come again at once, and a receipt is time and id: it must tell the two apart.
local enqueued = now
if dedupe_ms == 0 and pending > 0 then
  local last = record_parse(redis.call('LINDEX', q, -1))
  if last and last.enqueued_ms >= now and last.enqueued_ms < now + 60000 then enqueued = last.enqueued_ms + 1 end
end
local record = record_build(enqueued, expires, 0, 0, id, coalesce, trace, '', '', body)

if slot then
  redis.call('LSET', q, slot, record)
  extend_expiry(q, now, expires)
  return { 'coalesced', pending, -1, 0 }
end

local n, heard = enqueue(q, s, w, sid, record, expires, now, look_again_ms, inboxes, publish, handoff_bytes)
if n == 0 then
  if dedupe_ms > 0 then redis.call('DEL', d) end
  return heard
end
-- The new record is in before an old one goes, so that a refused write never costs an old message.
local dropped = 0
while n > max_pending and dropped < 64 do
  redis.call('LPOP', q)
  n, dropped = n - 1, dropped + 1
end
return { 'queued', n, heard, dropped }
