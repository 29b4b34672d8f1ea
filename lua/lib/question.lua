-- A question ends: its outcome is stored and kept for whoever waits, and it is not one of the session's open ones any
-- more. Begins with a removal, so that the end of a question gets through on a full server.
-- `by` tells answers apart; it is empty when nobody answered.
local function question_end(e, eo, rid, keep_ms, outcome, content, why, by)
  redis.call('ZREM', eo, rid)
  redis.call('HSET', e, 'outcome', outcome, 'content', content, 'why', why, 'by', by)
  redis.call('PEXPIRE', e, keep_ms)
end

-- Wake the nodes that wait for the question, and the session's owner, which may be asking its client.
local function question_ring(inboxes, publish, s, sid, rid, waiters)
  local payload = '@question ' .. sid .. ' ' .. rid
  local owner = redis.pcall('HGET', s, sid)
  local rung = {}
  if type(owner) == 'string' then waiters = waiters .. ' ' .. string.match(owner, '^[^:]*') end
  for node in string.gmatch(waiters, '%S+') do
    if not rung[node] then redis.pcall(publish, inboxes .. node, payload) end
    rung[node] = true
  end
end
