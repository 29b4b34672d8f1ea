-- question_answer: the client's answer. Exactly one counts; every other is told why it does not.
--
-- Uses      lib/now_ms.lua, lib/question.lua
-- KEYS[1]   s                HASH    encoded session id -> owner token
-- KEYS[2]   e                HASH    the question
-- KEYS[3]   eo               ZSET    the session's open questions
-- ARGV[1]   sid              encoded session id
-- ARGV[2]   rid              encoded request id
-- ARGV[3]   scope            who answers; empty: an anonymous caller
-- ARGV[4]   outcome          accepted | declined | cancelled
-- ARGV[5]   content          opaque; empty when there is none
-- ARGV[6]   by               names this answer, new for each: a repeated call is the same answer
-- ARGV[7]   inboxes          prefix of the nodes' inbox channels
-- ARGV[8]   publish          PUBLISH | SPUBLISH
-- Replies   {"answered"}   it counts, or counted already
--           {"second"}     another answer was first
--           {"late"}       the time of the question is over
--           {"closed"}     it ended without an answer
--           {"scope"}      it is another scope's question
--           {"unknown"}    there is no such question
-- Errors    WRONGTYPE a foreign key is in the way; nothing changed
-- Cost      O(log open questions)
local s, e, eo = KEYS[1], KEYS[2], KEYS[3]
local sid, rid, scope, outcome, content, by = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6]
local inboxes, publish = ARGV[7], ARGV[8]

local f = redis.call('HMGET', e, 'scope', 'outcome', 'by', 'deadline_ms', 'keep_ms', 'waiters')
if not f[1] then return { 'unknown' } end
if f[1] ~= scope then return { 'scope' } end
if f[2] then
  if f[3] == by then return { 'answered' } end
  if f[3] ~= '' then return { 'second' } end
  return { f[2] == 'timed_out' and 'late' or 'closed' }
end
if tonumber(f[4]) <= now_ms() then return { 'late' } end
question_end(e, eo, rid, f[5], outcome, content, '', by)
question_ring(inboxes, publish, s, sid, rid, f[6])
return { 'answered' }
