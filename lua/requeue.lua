-- requeue: the head was not delivered: count the attempt and keep it for later, or make it a dead letter.
--
-- The head keeps its place with a not-before (order fifo), or goes to the back of the list (order tail). The
-- attempt is passed as a number, not added, so that a repeated call counts once. The owner keeps its claim.
--
-- Uses      lib/now_ms.lua, lib/record.lua, lib/receipt.lua, lib/small_writes.lua, lib/bury.lua, lib/owner.lua
-- KEYS[1]   s                HASH    encoded session id -> owner token
-- KEYS[2]   w                ZSET    sessions with pending messages -> when to look again
-- KEYS[3]   q                LIST    the session's records
-- KEYS[4]   dead             LIST    the session's dead letters
-- ARGV[1]   node             this process
-- ARGV[2]   epoch            epoch of our claim
-- ARGV[3]   sid              encoded session id
-- ARGV[4]   receipt          of the head that failed: its beginning up to the end of its id
-- ARGV[5]   attempt          number of the attempt that failed, from 1
-- ARGV[6]   max_attempts     at this attempt the message is buried; 0: bury it now, it was rejected
-- ARGV[7]   delay_ms         not before now + delay_ms
-- ARGV[8]   error            why, kept with the message
-- ARGV[9]   order            fifo | tail
-- ARGV[10]  dead_cap         limit of the dead letter list
-- ARGV[11]  dead_ttl_ms      life of the dead letter list
-- Replies   {"requeued", attempts, delay_ms}
--           {"dead", attempts}      with reason `attempts` or `rejected`
--           {"expired"}             its time was over: dropped, not retried
--           {"unknown"}             the message is not at the head; nothing changed
--           {"fenced"} another node owns the session; {"lost"} nobody owns it; nothing changed
-- Errors    WRONGTYPE a foreign key is in the way; nothing changed
-- Cost      O(size of the record)
local s, w, q, dead = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local node, epoch, sid, receipt = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local attempt, max_attempts, delay_ms = tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7])
local err, order = ARGV[8], ARGV[9]
local dead_cap, dead_ttl_ms = tonumber(ARGV[10]), ARGV[11]

local owner = ownership(s, sid, node .. ':' .. epoch)
if owner ~= 'held' then return { owner } end
local r = redis.call('LINDEX', q, 0)
local f = r and record_parse(r)
if not f or not has_receipt(r, receipt) then return { 'unknown' } end
redis.call('LLEN', dead)   -- a foreign key here must stop us before the first write

local now = now_ms()
local attempts = math.max(f.attempts, attempt)
allow_small_writes(s)

local function remove_head()
  redis.call('LPOP', q)
  if redis.call('LLEN', q) == 0 then redis.call('ZREM', w, sid) end
end

if f.expires_ms <= now then
  remove_head()
  return { 'expired' }
end
if attempts >= max_attempts then
  remove_head()
  bury(dead, record_failed(r, f, attempts, 0, err), max_attempts == 0 and 'rejected' or 'attempts', now, dead_cap,
    dead_ttl_ms)
  return { 'dead', attempts }
end
redis.call('LSET', q, 0, record_failed(r, f, attempts, now + delay_ms, err))
if order == 'tail' then redis.call('LMOVE', q, q, 'LEFT', 'RIGHT') end
return { 'requeued', attempts, delay_ms }
