-- question_wait: what became of questions that this node waits for, many in one call.
--
-- Settles what only time can settle: a question whose time is over has timed out; one whose session nobody has served
-- for as long as its grace is gone. Notes the node, so that an answer rings here (the newest 8 nodes are kept).
--
-- Uses      lib/now_ms.lua, lib/small_writes.lua, lib/question.lua
-- KEYS[1]   s                HASH    encoded session id -> owner token
-- KEYS[2]   n                ZSET    node -> deadline of its lease
-- KEYS[3..] e eo             HASH    for each question: itself, its session's open ones
-- ARGV[1]   node             this process
-- ARGV[2]   budget           about how many bytes of contents the whole reply may carry
-- ARGV[3..] sid rid          for each question: encoded session id, encoded request id
-- Replies   one array a question, in order:
--           {"open", left_ms}             how long an answer still counts
--           {"done", outcome, content}    accepted | declined | cancelled | timed_out | session_gone
--           {"more"}                      the reply is full: ask again
--           {"unknown"}                   there is no such question, or it is not kept any more
--           {"error", text}               a foreign key is in the way
-- Errors    WRONGTYPE when s is a foreign key
-- Cost      O(log nodes) a question
local s, n = KEYS[1], KEYS[2]
local node, budget = ARGV[1], tonumber(ARGV[2])
local now = now_ms()
allow_small_writes(s)

-- Whether nobody serves the session: no owner, or one whose lease is over.
local function is_alone(sid)
  local owner = redis.call('HGET', s, sid)
  if not owner then return true end
  local lease = redis.call('ZSCORE', n, string.match(owner, '^[^:]*'))
  return not lease or tonumber(lease) < now
end

local function note_waiter(e, waiters)
  local kept, count = {}, 0
  for other in string.gmatch(waiters, '%S+') do
    if other == node then return end
    count = count + 1
    kept[count] = other
  end
  kept[count + 1] = node
  redis.call('HSET', e, 'waiters', table.concat(kept, ' ', math.max(1, count - 6)))
end

local function wait_one(e, eo, sid, rid)
  local f = redis.call('HMGET', e, 'outcome', 'deadline_ms', 'waiters', 'alone_ms', 'grace_ms', 'keep_ms')
  if f[1] then
    if budget <= 0 then return { 'more' } end
    local content = redis.call('HGET', e, 'content') or ''
    budget = budget - #content - 1
    return { 'done', f[1], content }
  end
  if not f[2] then return { 'unknown' } end
  local left, outcome = tonumber(f[2]) - now, nil
  if left <= 0 then
    outcome = 'timed_out'
  elseif not is_alone(sid) then
    if f[4] then redis.call('HDEL', e, 'alone_ms') end
  elseif not f[4] then
    redis.call('HSET', e, 'alone_ms', string.format('%.0f', now))
  elseif now - tonumber(f[4]) >= tonumber(f[5]) then
    outcome = 'session_gone'
  end
  if outcome then
    question_end(e, eo, rid, f[6], outcome, '', '', '')
    return { 'done', outcome, '' }
  end
  note_waiter(e, f[3])
  return { 'open', left }
end

local out = {}
for a = 3, #ARGV, 2 do
  local ok, reply = pcall(wait_one, KEYS[a], KEYS[a + 1], ARGV[a], ARGV[a + 1])
  out[#out + 1] = ok and reply or { 'error', type(reply) == 'table' and reply.err or tostring(reply) }
end
return out
