-- Append a record; when it is the first, index the session and ring its owner. Answers the length, or an error when
-- nothing was queued.
local function enqueue(q, s, w, sid, record, expires, now, look_again_ms, inboxes, publish, handoff_bytes)
  local n = redis.call('RPUSH', q, record)
  local late = a_little_late(now, expires)
  if n > 1 then
    extend_expiry(q, now, expires, late)
    return n
  end
  redis.call('PEXPIREAT', q, late)
  return first_in_queue(q, s, w, sid, record, string.format('%.0f', now + look_again_ms), inboxes, publish,
    handoff_bytes)
end
