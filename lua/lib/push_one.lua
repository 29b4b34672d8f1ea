-- What push does with a message, and coalesce with one that replaces no other. Few functions, few strings, and what
-- the messages of a call have in common made once: this is the most frequent work of all, and Lua costs more than the
-- commands inside.
local known_ttl, expires, late, head

local function push_one(c, q, d, sid, id, body, ttl_ms, dedupe_ms, bit, max_pending, policy, coalesce, trace)
  if dedupe_ms ~= '0' then
    local known, refused = seen_before(d, dedupe_ms, bit)
    if known then return { 'duplicate', redis.call('LLEN', q), 0 } end
    if refused then return refused end
  end
  if ttl_ms ~= known_ttl then
    known_ttl, expires = ttl_ms, c.now + ttl_ms
    late, head = a_little_late(c.now, expires), '1 ' .. c.now .. ' ' .. expires .. ' 0 0 '
  end
  local start = head
  if dedupe_ms == '0' then
    -- An id may come again at once, and a receipt is time and id: it must tell the two apart.
    local last = redis.call('LINDEX', q, '-1')
    last = last and tonumber(string.match(last, '^1 (%d+) '))
    if last and last >= c.now and last < c.now + 60000 then start = '1 ' .. last + 1 .. ' ' .. expires .. ' 0 0 ' end
  end
  local record
  if coalesce == '' and trace == '' then
    record = start .. #id .. ' 0 0 0 0\n' .. id .. body
  else
    record = start .. #id .. ' ' .. #coalesce .. ' ' .. #trace .. ' 0 0\n' .. id .. coalesce .. trace .. body
  end

  local n = redis.pcall('RPUSH', q, record)
  if type(n) == 'number' then
    if n == 1 then
      n = first_in_queue(q, c.s, c.w, sid, record, late, c.look_at, c.inboxes, c.publish, c.handoff_bytes)
      if n == 1 then return n end
    elseif n <= tonumber(max_pending) then
      extend_expiry(q, c.now, expires, late)
      return n
    elseif policy == 'drop_oldest' then
      -- The new record is in before an old one goes, so that a refused write never costs an old message.
      local dropped = math.min(n - max_pending, 64)
      redis.call('LTRIM', q, dropped, -1)
      extend_expiry(q, c.now, expires, late)
      return { 'queued', n - dropped, dropped }
    else
      redis.call('RPOP', q)
      n = { 'full', n - 1, 0 }
    end
  end
  if dedupe_ms ~= '0' then forget_seen(d, bit) end
  return n
end

-- What all messages of a call share.
local function call_of(s, w, look_again_ms, inboxes, publish, handoff_bytes)
  local now = now_ms()
  return {
    s = s, w = w, now = now, look_at = string.format('%.0f', now + look_again_ms), inboxes = inboxes,
    publish = publish, handoff_bytes = tonumber(handoff_bytes),
  }
end
