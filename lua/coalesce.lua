-- coalesce: as push, but a newer message takes the place of a pending one with the same coalescing key.
--
-- Uses      lib/now_ms.lua, lib/record.lua, lib/seen.lua, lib/some.lua, lib/first.lua, lib/push_one.lua
-- KEYS[1]   q                LIST    the session's records, head = next
-- KEYS[2]   s                HASH    encoded session id -> owner token
-- KEYS[3]   w                ZSET    sessions with pending messages -> when to look again
-- KEYS[4]   d                STRING  marks the message id as known: its own key, or its producer's block of bits
-- ARGV[1]   sid              encoded session id
-- ARGV[2]   id               message id, 1 or more bytes
-- ARGV[3]   body             opaque bytes
-- ARGV[4]   ttl_ms           > 0, the message's own
-- ARGV[5]   dedupe_ms        window in which the id is refused as a duplicate; 0: none, d is left alone
-- ARGV[6]   bit              the id's place in d, below 2^32; empty: d belongs to this id alone
-- ARGV[7]   max_pending      limit of the session's list
-- ARGV[8]   policy           refuse | drop_oldest
-- ARGV[9]   trace            trace context, opaque; may be empty
-- ARGV[10]  look_again_ms    how long a doorbell may stay unanswered
-- ARGV[11]  inboxes          prefix of the nodes' inbox channels
-- ARGV[12]  publish          PUBLISH | SPUBLISH
-- ARGV[13]  handoff_bytes    largest record that travels in the doorbell
-- ARGV[14]  coalesce         the coalescing key, 1 or more bytes
-- Replies   {"coalesced", pending, 0}            it took the place of an older one; the rest as push
--           pending; {"queued", pending, dropped}; {"duplicate", pending, 0}; {"full", pending, 0}
-- Errors    as push
-- Cost      O(n) over the newest 1,024 pending records
local q, d, body, ttl_ms, dedupe_ms, bit, coalesce = KEYS[1], KEYS[4], ARGV[3], ARGV[4], ARGV[5], ARGV[6], ARGV[14]

-- Never the head: it may be on its way already.
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
local slot = find_coalesced(pending)
local c = call_of(KEYS[2], KEYS[3], ARGV[10], ARGV[11], ARGV[12], ARGV[13])
local windowed = dedupe_ms ~= '0'
if windowed then
  local known, refused = seen_before(d, dedupe_ms, bit)
  if known then return { 'duplicate', pending, 0 } end
  if refused then return refused end
end
if not slot then
  local reply, first = store_message(c, q, ARGV[2], body, ttl_ms, windowed, ARGV[7], ARGV[8], coalesce, ARGV[9])
  if first then
    reply = first_in_queue(q, c.s, c.w, ARGV[1], first, c.look_at, c.inboxes, c.publish, c.handoff_bytes)
  end
  if windowed and type(reply) == 'table' and reply[1] ~= 'queued' then forget_seen(d, bit) end
  return reply
end
local now, till = c.now, c.now + ttl_ms
redis.call('LSET', q, slot, record_build(now, till, 0, 0, ARGV[2], coalesce, ARGV[9], '', '', body))
extend_expiry(q, now, till)
return { 'coalesced', pending, 0 }
