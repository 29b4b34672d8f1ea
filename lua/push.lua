-- push: store messages with their own times to live and wake the sessions' owners; many in one call, in order.
--
-- Every message is judged alone; a refused one leaves nothing behind. The first write of a call adds memory, so a
-- full server refuses it whole (OOM). Owners hear of the call together, see "Doorbells".
--
-- Uses      lib/fast.lua, lib/now_ms.lua, lib/seen.lua, lib/some.lua, lib/first.lua, lib/push_one.lua, lib/guarded.lua
-- KEYS[1]   s                HASH    encoded session id -> owner token
-- KEYS[2]   w                ZSET    sessions with pending messages -> when to look again
-- KEYS[3..] q d              LIST, STRING  for each message: its session's records, head = next; and what marks its id
--                            as known: a key of its own, or its producer's block of bits
-- ARGV[1]   look_again_ms    how long a doorbell may stay unanswered
-- ARGV[2]   inboxes          prefix of the nodes' inbox channels
-- ARGV[3]   publish          PUBLISH | SPUBLISH
-- ARGV[4]   handoff_bytes    largest record that travels in the doorbell
-- ARGV[5..] sid id body bit options trace  for each message: encoded session id; message id, 1 or more bytes; opaque
--                            bytes; the id's place in d, below 2^32, empty: d belongs to this id alone; its options;
--                            trace context, opaque, may be empty. Options are four words with a space between them:
--                            ttl_ms > 0, the message's own; dedupe_ms, window in which the id is refused as a
--                            duplicate, 0: none; max_pending, limit of the session's list; refuse | drop_oldest
-- Replies   one answer a message, in order:
--           pending                              queued; so many are pending now (an integer, the common case)
--           {"queued", pending, dropped}         queued, and so many of the oldest went for it
--           {"duplicate", pending, 0}            the id is known in its window; nothing was written
--           {"full", pending, 0}                 policy refuse; nothing was written
--           {"error", text}                      nothing was queued: a foreign key is in the way
-- Errors    OOM the server is full, or another refusal at the first write; nothing is queued
-- Cost      O(1) a message
local c = call_of(KEYS[1], KEYS[2], ARGV[1], ARGV[2], ARGV[3], ARGV[4])
local count = (#KEYS - 2) / 2
local out, seen, marked_to = {}, {}, 0
local first_count, firsts, sids, records = 0, {}, {}, {}
local index_error, options, ttl_ms, dedupe_ms, max_pending, policy

-- Message i's options, taken apart once for all that have the same.
local function read_options(text)
  ttl_ms, dedupe_ms, max_pending, policy = string.match(text, '^(%d+) (%d+) (%d+) (%S+)$')
  if not policy then error({ err = 'ERR options are ttl_ms dedupe_ms max_pending policy' }) end
  options = text
end

-- Marks the ids of message i and of those behind it that share its block, at most 64, in one command.
local function mark_run(i)
  local d, text, bits = KEYS[2 * i + 2], ARGV[6 * i + 3], {}
  local last = math.min(count, i + 63)
  local j = i
  while j <= last and KEYS[2 * j + 2] == d and ARGV[6 * j + 3] == text and ARGV[6 * j + 2] ~= '' do
    local n = #bits
    bits[n + 1], bits[n + 2], bits[n + 3], bits[n + 4] = 'SET', 'u1', ARGV[6 * j + 2], '1'
    j = j + 1
  end
  marked_to = j - 1
  if marked_to == i then return end
  local old = pcall_some('BITFIELD', d, bits, 1, #bits)
  -- Refused: each for itself, and the first to be refused says why.
  if old.err then return end
  for n, bit in ipairs(old) do seen[i + n - 1] = bit == 1 end
  keep_block(d, dedupe_ms)
end

local function forget(i)
  if dedupe_ms ~= '0' then forget_seen(KEYS[2 * i + 2], ARGV[6 * i + 2]) end
end

-- An error of the server that is not about one session's key.
local function refused_by_server(reply)
  return type(reply) == 'table' and reply.err and string.sub(reply.err, 1, 9) ~= 'WRONGTYPE'
end

-- The index refused: what these lists hold came with this call, and goes.
local function take_back(refused)
  for _, first in ipairs(firsts) do
    local q = KEYS[2 * first + 1]
    redis.call('DEL', q)
    for i = first, #KEYS / 2 - 1 do
      local reply = out[i]
      if KEYS[2 * i + 1] == q and (type(reply) == 'number' or reply and reply[1] == 'queued') then
        read_options(ARGV[6 * i + 3])
        forget(i)
        out[i] = { 'error', refused.err }
      end
    end
  end
end

-- Indexes what became first in its list.
local function settle_firsts()
  if first_count == 0 then return end
  local refused = index_and_ring(c.s, c.w, sids, records, c.look_at, c.inboxes, c.publish, c.handoff_bytes)
  if refused then
    index_error = refused_by_server(refused) and refused
    take_back(refused)
  end
  first_count, firsts, sids, records = 0, {}, {}, {}
end

local function push_one(i)
  if first_count == 64 then settle_firsts() end
  local q, a = KEYS[2 * i + 1], 6 * i - 1
  if ARGV[a + 4] ~= options then read_options(ARGV[a + 4]) end
  if dedupe_ms ~= '0' then
    local bit = ARGV[a + 3]
    if i > marked_to and bit ~= '' then mark_run(i) end
    local known, refused = seen[i], nil
    if known == nil then known, refused = seen_before(KEYS[2 * i + 2], dedupe_ms, bit) end
    if known then return { 'duplicate', call('LLEN', q), 0 } end
    if refused then return i == 1 and refused or { 'error', refused.err } end
  end
  local reply, first = store_message(c, q, ARGV[a + 1], ARGV[a + 2], ttl_ms, dedupe_ms ~= '0', max_pending, policy, '',
    ARGV[a + 5])
  if first then
    first_count = first_count + 1
    firsts[first_count], sids[first_count], records[first_count] = i, ARGV[a], first
  elseif type(reply) == 'table' and reply[1] ~= 'queued' then
    forget(i)
    if reply.err and i > 1 then return { 'error', reply.err } end
  end
  return reply
end

out[1] = guarded(push_one, 1)
if refused_by_server(out[1]) then
  -- Before anything was stored: the answer to the whole call.
  for i = 2, marked_to do
    if seen[i] == false then forget(i) end
  end
  return out[1]
end
guarded_each(push_one, 2, count, out)
settle_firsts()
if count == 1 and index_error then return index_error end
if type(out[1]) == 'table' and out[1].err then out[1] = { 'error', out[1].err } end
return out
