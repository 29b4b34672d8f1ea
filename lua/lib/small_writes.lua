-- Redis checks its memory limit at a script's first write only. A removal is always allowed, so a script
-- that begins with one may update its few bytes of bookkeeping on a full server, which is what lets a full
-- server be drained. Never used by a script that adds messages.
local function allow_small_writes(hash)
  redis.call('HDEL', hash, '')
end
