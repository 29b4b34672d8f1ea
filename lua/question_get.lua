-- question_get: questions as they were asked, for the process that asks the client.
--
-- Uses      lib/now_ms.lua
-- KEYS[1..] e                HASH    for each: the question
-- ARGV[1]   tell             yes | no   yes: the client is told of them now, by the session's owner
-- ARGV[2]   budget           about how many bytes of requests the whole reply may carry
-- Replies   one array a question, in order:
--           {"open", left_ms, told, kind, request, task, scope}  told: 1 when an owner had told its client before
--           {"done", outcome}; {"unknown"}; {"more"} the reply is full: ask again; {"error", text} a foreign key
-- Errors    none of its own
-- Cost      O(1) a question
local tell, budget = ARGV[1], tonumber(ARGV[2])
local now = now_ms()

local function get_one(e)
  local f = redis.call('HMGET', e, 'outcome', 'deadline_ms', 'told')
  if f[1] then return { 'done', f[1] } end
  if not f[2] then return { 'unknown' } end
  local left = tonumber(f[2]) - now
  if left <= 0 then return { 'done', 'timed_out' } end
  if budget <= 0 then return { 'more' } end
  local a = redis.call('HMGET', e, 'kind', 'request', 'task', 'scope')
  budget = budget - #a[2] - 1
  if tell == 'yes' then
    -- A removal first, so that it gets through on a full server. Whoever tells also serves the session.
    redis.call('HDEL', e, 'alone_ms')
    redis.call('HSET', e, 'told', 1)
  end
  return { 'open', left, f[3] and 1 or 0, a[1], a[2], a[3], a[4] }
end

local out = {}
for i, e in ipairs(KEYS) do
  local ok, reply = pcall(get_one, e)
  out[i] = ok and reply or { 'error', type(reply) == 'table' and reply.err or tostring(reply) }
end
return out
