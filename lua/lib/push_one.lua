-- One message of a push: store it, and what all messages of a call share. Few functions, few strings, and what the
-- messages have in common made once: this is the most frequent work of all, and Lua costs more than the commands
-- inside.
local known_ttl, expires, late, head, id_bytes, plain

-- Appends a record. Answers its number of pending ones and, when it is the first, the record: then the caller has to
-- index the session. Or the error, or the reply, of a message that was not queued plainly.
local function store_message(c, q, id, body, ttl_ms, windowed, max_pending, policy, coalesce, trace)
  if ttl_ms ~= known_ttl then
    known_ttl, expires = ttl_ms, c.now + ttl_ms
    late, head = a_little_late(c.now, expires), '1 ' .. c.now .. ' ' .. expires .. ' 0 0 '
  end
  local start = head
  if not windowed then
    -- An id may come again at once, and a receipt is time and id: it must tell the two apart.
    local last = redis.call('LINDEX', q, '-1')
    last = last and tonumber(string.match(last, '^1 (%d+) '))
    if last and last >= c.now and last < c.now + 60000 then start = '1 ' .. last + 1 .. ' ' .. expires .. ' 0 0 ' end
  end
  local record
  if coalesce == '' and trace == '' then
    if #id ~= id_bytes then id_bytes, plain = #id, #id .. ' 0 0 0 0\n' end
    record = start .. plain .. id .. body
  else
    record = start .. #id .. ' ' .. #coalesce .. ' ' .. #trace .. ' 0 0\n' .. id .. coalesce .. trace .. body
  end

  local n = redis.pcall('RPUSH', q, record)
  if type(n) ~= 'number' then return n end
  if n == 1 then
    redis.call('PEXPIREAT', q, late)
    return n, record
  end
  if n <= tonumber(max_pending) then
    extend_expiry(q, c.now, expires, late)
    return n
  end
  if policy == 'drop_oldest' then
    -- The new record is in before an old one goes, so that a refused write never costs an old message.
    local dropped = math.min(n - max_pending, 64)
    redis.call('LTRIM', q, dropped, -1)
    extend_expiry(q, c.now, expires, late)
    return { 'queued', n - dropped, dropped }
  end
  redis.call('RPOP', q)
  return { 'full', n - 1, 0 }
end

-- What all messages of a call share.
local function call_of(s, w, look_again_ms, inboxes, publish, handoff_bytes)
  local now = now_ms()
  return {
    s = s, w = w, now = now, look_at = string.format('%.0f', now + look_again_ms), inboxes = inboxes,
    publish = publish, handoff_bytes = tonumber(handoff_bytes),
  }
end
