-- task_create: store a task, queue its first leg, and wake an idle worker.
--
-- The first write adds memory, so a full server refuses it whole (OOM).
--
-- Uses      lib/now_ms.lua, lib/task.lua, lib/legs.lua
-- KEYS[1]   t                HASH    the task
-- KEYS[2]   legs             ZSET    waiting and running legs -> when they may be taken
-- KEYS[3]   idle             ZSET    idle workers -> until when they count on being rung
-- ARGV[1]   address          the task's name in indexes and signals
-- ARGV[2]   call             what to run, opaque
-- ARGV[3]   context          facts of the creating request, opaque
-- ARGV[4]   ttl_ms           > 0
-- ARGV[5]   latest_ms        longest life, however often it is extended; ttl_ms: the time to live is fixed
-- ARGV[6]   poll_ms          suggested pause between polls
-- ARGV[7]   message          status message; may be empty
-- ARGV[8]   session          who gets notifications/tasks through its queue; may be empty
-- ARGV[9]   delay_ms         the first leg starts no earlier
-- ARGV[10]  max_queued       limit of the index of legs
-- ARGV[11]  inboxes          prefix of the nodes' inbox channels
-- ARGV[12]  publish          PUBLISH | SPUBLISH
-- Replies   {"created", created_ms, expires_ms}
--           {"exists", created_ms, expires_ms}   an earlier try arrived; nothing was written
--           {"full", queued, 0}                  too many legs are waiting; nothing was written
-- Errors    WRONGTYPE a foreign key is in the way; OOM the server is full; nothing is stored in either case
-- Cost      O(log legs)
local t, legs, idle = KEYS[1], KEYS[2], KEYS[3]
local address, call, context, ttl_ms, latest_ms = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5])
local poll_ms, message, session, delay_ms = ARGV[6], ARGV[7], ARGV[8], tonumber(ARGV[9])
local max_queued, inboxes, publish = tonumber(ARGV[10]), ARGV[11], ARGV[12]

local known = task_read(t)
if known then return { 'exists', known.created_ms, known.expires_ms } end
local queued = redis.call('ZCARD', legs)
if queued >= max_queued then return { 'full', queued, 0 } end
redis.call('ZCARD', idle)   -- a foreign key here must stop us before anything is stored

local now = now_ms()
local expires, due = now + ttl_ms, now + delay_ms
redis.call('HSET', t, 'status', 'working', 'created', now, 'updated', now, 'expires', expires, 'ttl', ttl_ms,
  'latest', now + latest_ms, 'poll', poll_ms, 'due', due, 'attempts', 0, 'legs', 0, 'rev', 1,
  'call', call, 'context', context)
if message ~= '' then redis.call('HSET', t, 'message', message) end
if session ~= '' then redis.call('HSET', t, 'session', session) end
redis.call('PEXPIREAT', t, expires)
index_leg(legs, address, due, now, expires)
if delay_ms == 0 then ring_idle(idle, address, now, inboxes, publish) end
return { 'created', now, expires }
