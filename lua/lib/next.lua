-- What a session's owner gets next.

-- Make the head of the list deliverable: drop expired heads, bury heads that are out of attempts or in a
-- format not understood. A head whose not-before lies ahead keeps its place and everything behind it waits;
-- in tail order it goes behind the ready ones instead, at most 256 a call.
-- Answers the head (or false), wait_ms, expired, buried. No head and no wait: the list is empty. Bounded: after 512
-- dropped heads it answers wait_ms 1, that is "ask again". `head`: the first record, where the caller has read it.
local function settle_head(q, dead, now, o, head)
  local expired, buried, rotated, wait = 0, 0, 0, 0
  while true do
    local r = head or redis.call('LINDEX', q, '0')
    head = nil
    if not r then return false, 0, expired, buried end
    if expired + buried >= 512 then return false, 1, expired, buried end
    local f = record_parse(r)
    if f and f.expires_ms <= now then
      redis.call('LPOP', q)
      expired = expired + 1
    elseif not f or f.attempts >= o.max_attempts then
      redis.call('LLEN', dead)   -- a foreign key here must stop us before the record leaves the queue
      redis.call('LPOP', q)
      bury(dead, r, f and 'attempts' or 'format', now, o.dead_cap, o.dead_ttl_ms)
      buried = buried + 1
    elseif f.not_before_ms > now then
      -- Its time may be over before its pause is: what stands behind it waits for the earlier of the two.
      -- Never longer than a day: a record made by hand may hold any number, a reply may not.
      local left = math.min(f.not_before_ms - now, f.expires_ms - now, 86400000)
      if wait == 0 or left < wait then wait = left end
      if o.order ~= 'tail' then return false, wait, expired, buried end
      -- A push behind waiting ones rings no doorbell, and there may be more than were looked at: ask again soon.
      if rotated >= 256 or rotated + 1 >= redis.call('LLEN', q) then
        return false, math.min(wait, 100), expired, buried
      end
      redis.call('LMOVE', q, q, 'LEFT', 'RIGHT')
      rotated = rotated + 1
    else
      return r, 0, expired, buried
    end
  end
end

-- The head, which was read, and what may follow it in one batch: at most `want` records and about `budget` bytes.
-- Expired ones in between are left out here and dropped when they come to the head. How many are read at a time
-- follows from the size of the one before, so that large records do not fill the server's memory.
local function read_batch(q, now, max_attempts, want, budget, head)
  local out, bytes, at, size = { head }, #head, 1, #head
  while #out < want and bytes < budget and at < 1024 do
    local step = math.max(1, math.min(want - #out, 16, math.floor((budget - bytes) / size)))
    local chunk = redis.call('LRANGE', q, at, at + step - 1)
    if #chunk == 0 then return out, bytes end
    for _, r in ipairs(chunk) do
      size = #r
      local f = record_parse(r)
      if not f or f.attempts >= max_attempts or f.not_before_ms > now then return out, bytes end
      if f.expires_ms > now then
        if bytes + #r > budget then return out, bytes end
        out[#out + 1] = r
        bytes = bytes + #r
        if #out >= want then return out, bytes end
      end
    end
    at = at + #chunk
  end
  return out, bytes
end

-- One session's part of a reply: {status, wait_ms, acked, expired, buried, record...}. Status `more`: there is
-- something, but this reply is full; ask again. Empties leave the index, so that a session is in `w` exactly
-- while its list is not empty.
local function next_reply(q, dead, w, sid, now, o, want, acked, expired, first)
  local head, wait, dropped, buried = settle_head(q, dead, now, o, first)
  local reply = { 'ok', wait, acked, expired + dropped, buried }
  if not head then
    if wait == 0 then redis.call('ZREM', w, sid) end
  elseif want > 0 then
    if o.budget <= 0 then
      reply[1] = 'more'
    else
      local records, bytes = read_batch(q, now, o.max_attempts, want, o.budget, head)
      for _, r in ipairs(records) do reply[#reply + 1] = r end
      o.budget = o.budget - bytes
    end
  end
  return reply
end
