-- A task is one hash: all of it expires together. What stands in it: docs/protocol.md.
local TERMINAL = { completed = true, failed = true, cancelled = true }

-- What the verbs decide by; nil when there is no such task.
local function task_read(t)
  local f = redis.call('HMGET', t, 'status', 'created', 'expires', 'ttl', 'latest', 'due', 'lease', 'attempts', 'legs',
    'open', 'asked', 'used', 'cancel', 'watch', 'rev', 'session')
  if not f[1] then return nil end
  return {
    status = f[1], created_ms = tonumber(f[2]), expires_ms = tonumber(f[3]), ttl_ms = tonumber(f[4]),
    latest_ms = tonumber(f[5]), due_ms = tonumber(f[6] or nil), lease = f[7], attempts = tonumber(f[8]),
    legs = tonumber(f[9]), open = f[10] or '', asked = f[11] or '', used = f[12] or '', cancel = f[13] and 1 or 0,
    watch = f[14] or '', rev = tonumber(f[15]), session = f[16] or '', terminal = TERMINAL[f[1]],
  }
end

-- A change makes the task live its time to live from now on, but never past its latest end. (With a fixed time to live
-- the latest end is the first one.) Never shortened. The clock of a task is here and nowhere else.
local function task_extend(t, f, now)
  local expires = math.min(f.latest_ms, now + f.ttl_ms)
  if expires <= f.expires_ms then return end
  f.expires_ms = expires
  redis.call('HSET', t, 'expires', expires)
  redis.call('PEXPIREAT', t, expires)
end

-- After every change that a client can see.
local function task_changed(t, f, now)
  redis.call('HSET', t, 'updated', now, 'rev', f.rev + 1)
  task_extend(t, f, now)
end

-- Forget requests and answers by their keys.
local function task_forget(t, keys)
  for key in string.gmatch(keys, '%S+') do redis.call('HDEL', t, 'i:' .. key, 'o:' .. key) end
end

-- The keys of a list, each with what the task has for it under a prefix: `i:` its request, `o:` its answer.
local function task_values(t, prefix, keys)
  local found = {}
  for key in string.gmatch(keys, '%S+') do
    found[#found + 1] = key
    found[#found + 1] = redis.call('HGET', t, prefix .. key) or ''
  end
  return found
end

-- Is the key in a list of keys?
local function has_key(keys, key)
  return string.find(' ' .. keys .. ' ', ' ' .. key .. ' ', 1, true) ~= nil
end

local function ring(inboxes, publish, node, frame)
  local heard = redis.pcall(publish, inboxes .. node, frame)
  return type(heard) == 'number' and heard > 0
end

-- Tell the nodes that watch the task. `watch` is a list of `<node>:<until when>`.
local function ring_watchers(f, address, now, inboxes, publish)
  for node, deadline in string.gmatch(f.watch, '([^%s:]+):(%d+)') do
    if tonumber(deadline) > now then ring(inboxes, publish, node, '@task ' .. address) end
  end
end

-- The end of a task. What only a leg needs goes, except what a failed task was made of: an operator may want it made
-- anew. The lease stays, so that its holder may repeat an unanswered call.
local function task_settle(t, f, legs, address, status, outcome, now)
  redis.call('HSET', t, 'outcome', outcome, 'status', status)
  redis.call('HDEL', t, 'state', 'due', 'open', 'asked', 'used', 'cancel')
  if status ~= 'failed' then redis.call('HDEL', t, 'call', 'context') end
  task_forget(t, f.used)
  redis.call('ZREM', legs, address)
  task_changed(t, f, now)
end
