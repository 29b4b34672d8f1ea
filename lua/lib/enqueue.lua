-- Append a record; when it is the first, index the session and ring its owner.
-- Answers the length and how many heard the doorbell (-1: silent, the owner still owes an ack).
-- A failed index write takes the record back, so that an error always means "not queued".
local function ring(inboxes, publish, owner, sid, record, handoff_bytes)
  if not owner then return 0 end
  local payload = sid
  if #record <= handoff_bytes then payload = sid .. ' ' .. record end
  local heard = redis.pcall(publish, inboxes .. string.match(owner, '^[^:]*'), payload)
  return type(heard) == 'number' and heard or 0
end

-- The queue's own expiry is extended, never shortened: an abandoned queue vanishes after its last record. It is set
-- a little late (a quarter of what is left, a minute at most), so that a busy queue is not touched by every push.
local function expire_after(q, now, expires)
  redis.call('PEXPIREAT', q, expires + math.min(math.floor((expires - now) / 4), 60000))
end

local function extend_expiry(q, now, expires)
  if now + redis.call('PTTL', q) < expires then expire_after(q, now, expires) end
end

local function enqueue(q, s, w, sid, record, expires, now, look_again_ms, inboxes, publish, handoff_bytes)
  local n = redis.call('RPUSH', q, record)
  if n > 1 then
    extend_expiry(q, now, expires)
    return n, -1
  end
  expire_after(q, now, expires)
  -- The one that only reads goes first: when it fails, there is no entry in `w` to take back.
  local owner = redis.pcall('HGET', s, sid)
  local failed = type(owner) == 'table' and owner
  if not failed then
    local indexed = redis.pcall('ZADD', w, now + look_again_ms, sid)
    failed = type(indexed) == 'table' and indexed
  end
  if failed then
    redis.call('RPOP', q)
    return 0, failed
  end
  return n, ring(inboxes, publish, owner, sid, record, handoff_bytes)
end
