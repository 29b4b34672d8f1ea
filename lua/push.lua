-- push: store messages with their own times to live and wake the sessions' owners; many in one call, in order.
--
-- Every message is judged alone; a refused one leaves nothing behind. The first write of a call adds memory, so a
-- full server refuses it whole (OOM).
--
-- Uses      lib/now_ms.lua, lib/seen.lua, lib/first.lua, lib/push_one.lua, lib/guarded.lua
-- KEYS[1]   s                HASH    encoded session id -> owner token
-- KEYS[2]   w                ZSET    sessions with pending messages -> when to look again
-- KEYS[3..] q d              LIST, STRING  for each message: its session's records, head = next; and what marks its id
--                            as known: a key of its own, or its producer's block of bits
-- ARGV[1]   look_again_ms    how long a doorbell may stay unanswered
-- ARGV[2]   inboxes          prefix of the nodes' inbox channels
-- ARGV[3]   publish          PUBLISH | SPUBLISH
-- ARGV[4]   handoff_bytes    largest record that travels in the doorbell
-- ARGV[5..] sid id body ttl_ms dedupe_ms bit max_pending policy trace  for each message:
--                            encoded session id; message id, 1 or more bytes; opaque bytes; > 0, the message's own;
--                            window in which the id is refused as a duplicate, 0: none; the id's place in d, below
--                            2^32, empty: d belongs to this id alone; limit of the session's list; refuse |
--                            drop_oldest; trace context, opaque, may be empty
-- Replies   one answer a message, in order:
--           pending                              queued; so many are pending now (an integer, the common case)
--           {"queued", pending, dropped}         queued, and so many of the oldest went for it
--           {"duplicate", pending, 0}            the id is known in its window; nothing was written
--           {"full", pending, 0}                 policy refuse; nothing was written
--           {"error", text}                      nothing was queued: a foreign key is in the way
-- Errors    OOM the server is full, or another refusal at the first write; nothing is queued
-- Cost      O(1) a message
local now, look_again_ms, inboxes, publish = now_ms(), ARGV[1], ARGV[2], ARGV[3]
local handoff_bytes = tonumber(ARGV[4])
local out, a = {}, 5
for k = 3, #KEYS, 2 do
  local reply = guarded(push_one, KEYS[k], KEYS[1], KEYS[2], KEYS[k + 1], now, ARGV[a], ARGV[a + 1], ARGV[a + 2],
    ARGV[a + 3], ARGV[a + 4], ARGV[a + 5], tonumber(ARGV[a + 6]), ARGV[a + 7], '', ARGV[a + 8], look_again_ms,
    inboxes, publish, handoff_bytes)
  if type(reply) == 'table' and reply.err then
    -- A refusal of the server, before anything was written, is the answer to the whole call.
    if k == 3 and string.sub(reply.err, 1, 9) ~= 'WRONGTYPE' then return reply end
    reply = { 'error', reply.err }
  end
  out[#out + 1] = reply
  a = a + 9
end
return out
