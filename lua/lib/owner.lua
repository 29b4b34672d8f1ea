-- A session's owner is the token `<node>:<epoch>`. Compared by equality only.
-- 'held' when the token is ours, 'lost' when the session has no owner at all, 'fenced' when another has it.
local function ownership_of(owner, token)
  if owner == token then return 'held' end
  return owner and 'fenced' or 'lost'
end

local function ownership(s, sid, token)
  return ownership_of(redis.call('HGET', s, sid), token)
end
