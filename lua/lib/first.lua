-- The queue's own expiry is extended, never shortened: an abandoned queue vanishes after its last record. It is set
-- a little late (a quarter of what is left, a minute at most), so that a busy queue is not touched by every push.
local function extend_expiry(q, now, expires)
  if now + redis.call('PTTL', q) < expires then
    redis.call('PEXPIREAT', q, expires + math.min(math.floor((expires - now) / 4), 60000))
  end
end

-- The record just pushed made the list's length 1: index the session and ring its owner. Answers 1, or the error of
-- an index that refuses: then the record is taken back, so that an error always means "not queued".
local function first_in_queue(q, s, w, sid, record, expires, now, look_again_ms, inboxes, publish, handoff_bytes)
  redis.call('PEXPIREAT', q, expires + math.min(math.floor((expires - now) / 4), 60000))
  -- The one that only reads goes first: when it fails, there is no entry in `w` to take back.
  local owner = redis.pcall('HGET', s, sid)
  local failed = type(owner) == 'table' and owner
  if not failed then
    local indexed = redis.pcall('ZADD', w, now + look_again_ms, sid)
    failed = type(indexed) == 'table' and indexed
  end
  if failed then
    redis.call('RPOP', q)
    return failed
  end
  if owner then
    local payload = sid
    if #record <= handoff_bytes then payload = sid .. ' ' .. record end
    redis.pcall(publish, inboxes .. string.match(owner, '^[^:]*'), payload)
  end
  return 1
end
