-- A session's owner is the token `<node>:<epoch>`.
-- 'held' when the token is ours; 'lost' when the session has no owner, or an older claim of our own node is stored (a
-- failover lost the newer one); 'fenced' when somebody else has it, or a newer claim of our own.
local function ownership_of(owner, token)
  if owner == token then return 'held' end
  if not owner then return 'lost' end
  local node, epoch = string.match(token, '^([^:]*):(%d+)$')
  local other, stored = string.match(owner, '^([^:]*):(%d+)$')
  if node and node == other and tonumber(stored) < tonumber(epoch) then return 'lost' end
  return 'fenced'
end

local function ownership(s, sid, token)
  return ownership_of(redis.call('HGET', s, sid), token)
end
