-- The work queue: a sorted set of the legs that wait or run, by the time when a worker may take them. For a leg that
-- runs that is the end of its lease, so that one whose worker died is found like any other.

-- The index lives as long as the longest living task in it.
local function index_leg(q, address, due, now, expires)
  redis.call('ZADD', q, due, address)
  if now + redis.call('PTTL', q) < expires then redis.call('PEXPIREAT', q, expires) end
end

-- Wake one idle worker. `idle` holds `<node>:<worker>` by the time until which it counts on being rung. Who was rung is
-- not idle any more; who does not hear is gone.
local function ring_idle(idle, address, now, inboxes, publish)
  for _ = 1, 8 do
    local one = redis.call('ZRANGEBYSCORE', idle, now, '+inf', 'LIMIT', 0, 1)[1]
    if not one then return end
    redis.call('ZREM', idle, one)
    local node, worker = string.match(one, '^([^:]*):(.*)$')
    if node and ring(inboxes, publish, node, '@work:' .. worker .. ' new ' .. address) then return end
  end
end

-- Wake the worker that holds a lease: there is something to know about its leg.
local function ring_holder(lease, address, inboxes, publish)
  local node, worker = string.match(lease, '^([^:]*):([^:]*):')
  if node then ring(inboxes, publish, node, '@work:' .. worker .. ' look ' .. address) end
end

-- What a worker may take next: up to `want` due legs, kept from the others for a moment. When there are fewer, the
-- worker is idle from here on, in the same step, so that no leg comes in between unheard; and it learns when the first
-- one becomes due (0: none).
local function next_legs(legs, idle, worker, want, now, reserve_ms, interest_ms)
  local found = want > 0 and redis.call('ZRANGEBYSCORE', legs, '-inf', now, 'LIMIT', 0, want) or {}
  for _, address in ipairs(found) do redis.call('ZADD', legs, now + reserve_ms, address) end
  if #found >= want then
    redis.call('ZREM', idle, worker)
    return found, 0
  end
  redis.call('ZADD', idle, now + interest_ms, worker)
  redis.call('PEXPIRE', idle, interest_ms)
  local first = redis.call('ZRANGE', legs, 0, 0, 'WITHSCORES')[2]
  return found, first and math.max(1, tonumber(first) - now) or 0
end
