-- What push does with a message, and coalesce with one that replaces no other. Few functions and few strings: this
-- is the most frequent work of all, and Lua costs more than the commands inside.
local function push_one(q, s, w, d, sid, id, body, ttl_ms, dedupe_ms, bit, max_pending, policy, coalesce, trace,
    look_again_ms, inboxes, publish, handoff_bytes)
  if dedupe_ms ~= '0' then
    local known, refused = seen_before(d, dedupe_ms, bit)
    if known then return { 'duplicate', redis.call('LLEN', q), 0 } end
    if refused then return refused end
  end
  local now = now_ms()
  local enqueued, expires = now, now + ttl_ms
  if dedupe_ms == '0' then
    -- An id may come again at once, and a receipt is time and id: it must tell the two apart.
    local last = redis.call('LINDEX', q, -1)
    last = last and tonumber(string.match(last, '^1 (%d+) '))
    if last and last >= now and last < now + 60000 then enqueued = last + 1 end
  end
  local record = '1 ' .. enqueued .. ' ' .. expires .. ' 0 0 ' .. #id .. ' ' .. #coalesce .. ' ' .. #trace
    .. ' 0 0\n' .. id .. coalesce .. trace .. body

  local n = redis.pcall('RPUSH', q, record)
  if type(n) == 'number' then
    if n == 1 then
      n = first_in_queue(q, s, w, sid, record, expires, now, look_again_ms, inboxes, publish, handoff_bytes)
      if n == 1 then return n end
    elseif n <= max_pending then
      extend_expiry(q, now, expires)
      return n
    elseif policy == 'drop_oldest' then
      -- The new record is in before an old one goes, so that a refused write never costs an old message.
      local dropped = math.min(n - max_pending, 64)
      redis.call('LTRIM', q, dropped, -1)
      extend_expiry(q, now, expires)
      return { 'queued', n - dropped, dropped }
    else
      redis.call('RPOP', q)
      n = { 'full', n - 1, 0 }
    end
  end
  if dedupe_ms ~= '0' then forget_seen(d, bit) end
  return n
end
