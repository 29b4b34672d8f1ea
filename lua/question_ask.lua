-- question_ask: store a question to a session's client and queue the notification that announces it, both or neither.
--
-- Asking the same thing again under the same id asks nothing twice. Decides everything first: a refused question has
-- written nothing. The first write adds memory, so a full server refuses it whole (OOM).
--
-- Uses      lib/now_ms.lua, lib/record.lua, lib/some.lua, lib/first.lua, lib/enqueue.lua
-- KEYS[1]   q                LIST    the session's records, head = next
-- KEYS[2]   s                HASH    encoded session id -> owner token
-- KEYS[3]   w                ZSET    sessions with pending messages -> when to look again
-- KEYS[4]   e                HASH    the question
-- KEYS[5]   eo               ZSET    the session's open questions: encoded request id -> deadline
-- ARGV[1]   sid              encoded session id
-- ARGV[2]   rid              encoded request id
-- ARGV[3]   id               message id of the notification
-- ARGV[4]   body             the notification, opaque
-- ARGV[5]   timeout_ms       > 0, how long an answer counts
-- ARGV[6]   grace_ms         how long nobody may serve the session before it counts as gone
-- ARGV[7]   keep_ms          > 0, how long the outcome is kept
-- ARGV[8]   max_pending      limit of the session's list, and of its open questions
-- ARGV[9]   kind             elicitation | sampling | roots
-- ARGV[10]  request          params of the request, opaque
-- ARGV[11]  task             id of the task that asks; may be empty
-- ARGV[12]  scope            whose answer counts; empty: an anonymous caller's
-- ARGV[13]  node             this process, which will wait
-- ARGV[14]  look_again_ms    how long a doorbell may stay unanswered
-- ARGV[15]  inboxes          prefix of the nodes' inbox channels
-- ARGV[16]  publish          PUBLISH | SPUBLISH
-- ARGV[17]  handoff_bytes    largest record that travels in the doorbell
-- Replies   {"asked", pending}      pending: messages of the session, the notification included
--           {"known", pending}      the same question is there already, open or not; nothing was written
--           {"other", pending}      the id belongs to another question; nothing was written
--           {"full", pending}       the limit is reached; nothing was written
-- Errors    WRONGTYPE a foreign key is in the way; OOM the server is full; nothing is asked in either case
-- Cost      O(log open questions)
local q, s, w, e, eo = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local sid, rid, id, body, timeout_ms = ARGV[1], ARGV[2], ARGV[3], ARGV[4], tonumber(ARGV[5])
local grace_ms, keep_ms, max_pending = ARGV[6], tonumber(ARGV[7]), tonumber(ARGV[8])
local kind, request, task, scope, node = ARGV[9], ARGV[10], ARGV[11], ARGV[12], ARGV[13]
local look_again_ms, inboxes, publish, handoff_bytes = tonumber(ARGV[14]), ARGV[15], ARGV[16], tonumber(ARGV[17])

local now = now_ms()
local pending = redis.call('LLEN', q)
local old = redis.call('HMGET', e, 'kind', 'request', 'task', 'scope')
if old[1] then
  local same = old[1] == kind and old[2] == request and old[3] == task and old[4] == scope
  return { same and 'known' or 'other', pending }
end
local last = redis.call('ZRANGE', eo, -1, -1, 'WITHSCORES')
if pending >= max_pending or redis.call('ZCARD', eo) >= max_pending then return { 'full', pending } end

local deadline = now + timeout_ms
redis.call('HSET', e, 'kind', kind, 'request', request, 'task', task, 'scope', scope, 'waiters', node,
  'deadline_ms', string.format('%.0f', deadline), 'grace_ms', grace_ms, 'keep_ms', keep_ms)
redis.call('PEXPIRE', e, timeout_ms + keep_ms)
redis.call('ZREMRANGEBYSCORE', eo, '-inf', now)
redis.call('ZADD', eo, deadline, rid)
-- Extended, never shortened: the index lives as long as the last of its questions may be answered.
redis.call('PEXPIREAT', eo, math.max(deadline, tonumber(last[2] or '0')))

local n = enqueue(q, s, w, sid, record_build(now, deadline, 0, 0, id, '', '', '', '', body), deadline, now,
  look_again_ms, inboxes, publish, handoff_bytes)
if type(n) == 'table' then
  redis.call('DEL', e)
  redis.call('ZREM', eo, rid)
  return n
end
return { 'asked', n }
