-- task_get: what a client may know of a task. Writes nothing.
--
-- Uses      lib/task.lua
-- KEYS[1]   t                HASH    the task
-- Replies   {"none"}  no such task: unknown, expired, or of another scope
--           {"task", status, created_ms, updated_ms, expires_ms, poll_ms, rev, message, outcome, {key, request, ...}}
--           the requests that wait for an answer
-- Errors    WRONGTYPE a foreign key is in the way
-- Cost      O(requests)
local t = KEYS[1]

local f = task_read(t)
if not f then return { 'none' } end
local more = redis.call('HMGET', t, 'updated', 'poll', 'message', 'outcome')
return { 'task', f.status, f.created_ms, tonumber(more[1]), f.expires_ms, tonumber(more[2]), f.rev,
  more[3] or '', more[4] or '', task_values(t, 'i:', f.open) }
