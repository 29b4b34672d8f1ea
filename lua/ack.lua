-- ack: remove delivered heads and answer what comes next, for many sessions in one call.
--
-- Every session is judged alone. A receipt that is no longer at the head is passed over: a repeated ack removes
-- nothing twice. Begins with a removal or a read, so it drains a full server.
--
-- Uses      lib/fast.lua, lib/now_ms.lua, lib/record.lua, lib/receipt.lua, lib/bury.lua, lib/some.lua, lib/next.lua, lib/guarded.lua
-- KEYS[1]   s                HASH    encoded session id -> owner token
-- KEYS[2]   w                ZSET    sessions with pending messages -> when to look again
-- KEYS[3..] q dead           LIST    for each session: its records, its dead letters
-- ARGV[1]   node             this process
-- ARGV[2]   max_attempts     a head with so many attempts is a dead letter
-- ARGV[3]   dead_cap         limit of a dead letter list
-- ARGV[4]   dead_ttl_ms      life of a dead letter list
-- ARGV[5]   order            fifo | tail
-- ARGV[6]   budget           about how many bytes of records the whole reply may carry
-- ARGV[7..] sid epoch want k receipt*k  for each session: encoded id, epoch, most records, and the receipts of what
--                            was delivered, in order: each record's beginning up to the end of its id
-- Replies   one answer a session, in order:
--           acked  (an integer) every receipt was removed, so many; nothing is pending
--           {"ok", wait_ms, acked, expired, buried, record...}  no record and wait_ms 0: nothing is pending
--           {"more", 0, acked, expired, buried}                 the reply is full: ask again with pop
--           {"fenced"} another node owns it; {"lost"} nobody owns it; {"error", text} foreign key in the way
-- Errors    none of its own
-- Cost      O(1) a receipt and a record
local s, w, node = KEYS[1], KEYS[2], ARGV[1]
local o = {
  max_attempts = tonumber(ARGV[2]), dead_cap = tonumber(ARGV[3]), dead_ttl_ms = ARGV[4],
  order = ARGV[5], budget = tonumber(ARGV[6]),
}
local now = now_ms()

-- Receipts stand at ARGV[first..last]. Answers how many were removed, how many expired ones went with them, and
-- whether the list is known to be empty now, or else its head if that was read. Reads one record more than it
-- removes: that tells the last case, the common one, without another call.
local function remove_delivered(q, first, last)
  local acked, expired, a = 0, 0, first
  while a <= last do
    local asked = math.min(last - a + 2, 32)
    local chunk = redis.call('LRANGE', q, '0', asked == 2 and '1' or asked - 1)
    if #chunk == 0 then return acked, expired, true end
    local gone, head = 0, nil
    for _, r in ipairs(chunk) do
      local skip = a
      while skip <= last and not has_receipt(r, ARGV[skip]) do skip = skip + 1 end
      local f = skip > last and record_parse(r)
      if skip <= last then
        a, gone, acked = skip + 1, gone + 1, acked + 1
      elseif f and f.expires_ms <= now then
        gone, expired = gone + 1, expired + 1
      else
        a, head = last + 1, r
        break
      end
    end
    if gone > 0 then redis.call('LTRIM', q, gone == 1 and '1' or gone, '-1') end
    if gone == #chunk and gone < asked then return acked, expired, true end
    if head then return acked, expired, false, head end
  end
  return acked, expired, false
end

-- Where each session's arguments begin.
local starts, sids, count, a = {}, {}, 0, 7
while ARGV[a] do
  count = count + 1
  starts[count], sids[count] = a, ARGV[a]
  a = a + 4 + ARGV[a + 3]
end
-- Owners are read, and emptied sessions leave the index, all together.
local owners, foreign, emptied, emptied_at, empties = {}, nil, {}, {}, 0
for from = 1, count, 64 do
  local to = math.min(from + 63, count)
  local some = pcall_some('HMGET', s, sids, from, to)
  foreign = some.err
  for i = from, to do owners[i] = some[i - from + 1] end
end

local function ack_one(i)
  if foreign then return { 'error', foreign } end
  local at, owner = starts[i], owners[i]
  if owner ~= node .. ':' .. ARGV[at + 1] then return { owner and 'fenced' or 'lost' } end
  local q, receipts = KEYS[2 * i + 1], tonumber(ARGV[at + 3])
  local acked, expired, empty, head
  if receipts == 1 then
    local chunk = call('LRANGE', q, '0', '1')
    if chunk[1] and not chunk[2] and has_receipt(chunk[1], ARGV[at + 4]) then
      call('DEL', q)
      acked, expired, empty = 1, 0, true
    end
  end
  if not acked then acked, expired, empty, head = remove_delivered(q, at + 4, at + 3 + receipts) end
  if empty then
    empties = empties + 1
    emptied[empties], emptied_at[empties] = sids[i], i
    if expired == 0 and acked == receipts then return acked end
    return { 'ok', 0, acked, expired, 0 }
  end
  return next_reply(q, KEYS[2 * i + 2], w, sids[i], now, o, tonumber(ARGV[at + 2]), acked, expired, head)
end

local out = {}
guarded_each(ack_one, 1, count, out)
for from = 1, empties, 64 do
  local to = math.min(from + 63, empties)
  local gone = pcall_some('ZREM', w, emptied, from, to)
  if type(gone) == 'table' then
    for n = from, to do out[emptied_at[n]] = { 'error', gone.err } end
  end
end
return out
