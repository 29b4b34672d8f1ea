-- question_close: end questions that get no answer: withdrawn, impossible for the client, or their session over.
--
-- Uses      lib/question.lua
-- KEYS[1]   s                HASH    encoded session id -> owner token
-- KEYS[2..] e eo             HASH    for each question: itself, its session's open ones
-- ARGV[1]   outcome          cancelled | session_gone
-- ARGV[2]   why              kept with the question
-- ARGV[3]   token            owner token of the caller: a session that another one owns is left alone; empty: not asked
-- ARGV[4]   inboxes          prefix of the nodes' inbox channels
-- ARGV[5]   publish          PUBLISH | SPUBLISH
-- ARGV[6..] sid rid          for each question: encoded session id, encoded request id
-- Replies   one array a question, in order:
--           {"closed"}; {"done"} it had ended before; {"unknown"}; {"fenced"} another owner has the session;
--           {"error", text} a foreign key is in the way
-- Errors    none of its own
-- Cost      O(log open questions) a question
local s = KEYS[1]
local outcome, why, token, inboxes, publish = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]

local function close_one(e, eo, sid, rid)
  local owner = token ~= '' and redis.call('HGET', s, sid)
  if owner and owner ~= token then return { 'fenced' } end
  local f = redis.call('HMGET', e, 'outcome', 'keep_ms', 'waiters')
  if f[1] then return { 'done' } end
  if not f[2] then
    redis.call('ZREM', eo, rid)
    return { 'unknown' }
  end
  question_end(e, eo, rid, f[2], outcome, '', why, '')
  question_ring(inboxes, publish, s, sid, rid, f[3])
  return { 'closed' }
end

local out = {}
for a = 6, #ARGV, 2 do
  local ok, reply = pcall(close_one, KEYS[a - 4], KEYS[a - 3], ARGV[a], ARGV[a + 1])
  out[#out + 1] = ok and reply or { 'error', type(reply) == 'table' and reply.err or tostring(reply) }
end
return out
