-- Idempotence of a push. `d` belongs to one message id (bit ''), or to a block of ids of one producer, one bit each.
-- A block's life is extended while it is in use, so that each bit outlives its window.
-- Answers whether the id is known, or an error to return; else the id is marked.
local kept
local function keep_block(d, window_ms)
  if d == kept then return end
  if redis.call('PTTL', d) < tonumber(window_ms) then redis.call('PEXPIRE', d, 2 * window_ms) end
  kept = d
end

local function seen_before(d, window_ms, bit)
  local old, known
  if bit == '' then
    old = redis.pcall('SET', d, '', 'NX', 'PX', window_ms)
    known = not old
  else
    old = redis.pcall('SETBIT', d, bit, '1')
    known = old == 1
  end
  if type(old) == 'table' and old.err then
    -- A full server refuses the write before it looks whether the id is known.
    if bit == '' then known = redis.call('EXISTS', d) == 1 else known = redis.call('GETBIT', d, bit) == 1 end
    return known, old
  end
  if bit ~= '' then keep_block(d, window_ms) end
  return known, nil
end

local function forget_seen(d, bit)
  if bit == '' then redis.call('DEL', d) else redis.call('SETBIT', d, bit, '0') end
end
