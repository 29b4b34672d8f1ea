-- leg_say: a running leg says how it goes.
--
-- Uses      lib/now_ms.lua, lib/task.lua
-- KEYS[1]   t                HASH    the task
-- ARGV[1]   address          the task's name in indexes and signals
-- ARGV[2]   lease            the token of the lease
-- ARGV[3]   message          status message
-- ARGV[4]   inboxes          prefix of the nodes' inbox channels
-- ARGV[5]   publish          PUBLISH | SPUBLISH
-- Replies   {"said"}; {"fenced"}, {"gone"} as leg_renew
-- Errors    WRONGTYPE a foreign key is in the way; OOM the server is full; nothing is stored in either case
-- Cost      O(1)
local t = KEYS[1]
local address, lease, message, inboxes, publish = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]

local f = task_read(t)
if not f then return { 'gone' } end
if f.terminal or f.lease ~= lease then return { 'fenced' } end
local now = now_ms()
redis.call('HSET', t, 'message', message)
task_changed(t, f, now)
ring_watchers(f, address, now, inboxes, publish)
return { 'said' }
