-- task_retry: an operator wants work done once more.
--
-- A leg that waits, for its backoff or for a worker, may be taken now, with all its attempts ahead. A failed task stays
-- failed, as a terminal state does: what it was made of is answered, for a new task of the id that it remembers, so
-- that a repeated call makes no second one.
--
-- Uses      lib/now_ms.lua, lib/task.lua, lib/legs.lua
-- KEYS[1]   t                HASH    the task
-- KEYS[2]   legs             ZSET    waiting and running legs -> when they may be taken
-- KEYS[3]   idle             ZSET    idle workers -> until when they count on being rung
-- ARGV[1]   address          the task's name in indexes and signals
-- ARGV[2]   id               of the new task, should one be needed and none be remembered
-- ARGV[3]   inboxes          prefix of the nodes' inbox channels
-- ARGV[4]   publish          PUBLISH | SPUBLISH
-- Replies   {"none"}     no such task
--           {"queued"}   its leg may be taken now
--           {"again", id, ttl_ms, latest_ms, poll_ms, session, call, context}  to be made anew; latest_ms: longest life
--           {"refused", word}  running, cancelling, or the status that has nothing to be retried
-- Errors    WRONGTYPE a foreign key is in the way; OOM the server is full; nothing is changed in either case
-- Cost      O(log legs)
local t, legs, idle = KEYS[1], KEYS[2], KEYS[3]
local address, new_id, inboxes, publish = ARGV[1], ARGV[2], ARGV[3], ARGV[4]

local f = task_read(t)
if not f then return { 'none' } end
if f.status == 'failed' then
  local stored = redis.call('HMGET', t, 'call', 'context', 'poll', 'retried')
  if not stored[1] then return { 'refused', 'failed' } end
  local id = stored[4] or new_id
  if not stored[4] then redis.call('HSET', t, 'retried', id) end
  return { 'again', id, f.ttl_ms, f.latest_ms - f.created_ms, tonumber(stored[3]), f.session, stored[1],
    stored[2] or '' }
end
if f.status ~= 'working' or not f.due_ms then return { 'refused', f.status } end
if f.cancel == 1 then return { 'refused', 'cancelling' } end
local now = now_ms()
if f.lease and f.due_ms > now then return { 'refused', 'running' } end
redis.call('ZCARD', legs)   -- foreign keys here must stop us before anything is stored
redis.call('ZCARD', idle)
redis.call('HSET', t, 'due', now, 'attempts', 0)
index_leg(legs, address, now, now, f.expires_ms)
ring_idle(idle, address, now, inboxes, publish)
return { 'queued' }
