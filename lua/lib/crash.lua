-- An owner that vanished without releasing may have died of the message it was given. One attempt is counted
-- on the head, so that a message that kills its readers ends as a dead letter. Not counted: a head that came
-- after the owner's lease had run out, since the owner cannot have been given that one.
local function count_crash(q, lease_deadline)
  local r = redis.call('LINDEX', q, 0)
  local f = r and record_parse(r)
  if f and f.enqueued_ms < lease_deadline then
    redis.call('LSET', q, 0, record_failed(r, f, f.attempts + 1, 0, 'owner lost'))
  end
end

-- The deadline of a node's lease, 0 when the node is not known any more.
local function lease_deadline(n, node)
  return tonumber(redis.call('ZSCORE', n, node) or '0')
end
