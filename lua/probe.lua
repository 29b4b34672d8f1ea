-- probe: which commands this user may not run. Tries each on a key that nothing else uses.
--
-- A missing right would else show in the middle of a script, after its first writes. Whatever else a command answers
-- (a full server, a replica, another type) is no matter here.
--
-- KEYS[1]   probe            STRING  lives for a second at most
-- ARGV[1]   channel          one that nobody hears, under the prefix of the channels in question
-- ARGV[2]   publish          PUBLISH | SPUBLISH
-- ARGV[3..] command          for each command: its name in lower case
-- Replies   {name, text, ...}  for each command that is denied, and for one that this script cannot try: name, why
-- Errors    NOPERM when the key is denied
-- Cost      O(1) a command
local k, channel, publish = KEYS[1], ARGV[1], ARGV[2]

-- The key is a string before each: those for other types then change nothing.
local try = {
  set = function() return redis.pcall('SET', k, '', 'PX', 1000) end,
  time = function() return redis.pcall('TIME') end,
  get = function() return redis.pcall('GET', k) end,
  exists = function() return redis.pcall('EXISTS', k) end,
  setbit = function() return redis.pcall('SETBIT', k, 0, 0) end,
  getbit = function() return redis.pcall('GETBIT', k, 0) end,
  bitfield = function() return redis.pcall('BITFIELD', k, 'SET', 'u1', 0, 0) end,
  del = function() return redis.pcall('DEL', k) end,
  pexpire = function() return redis.pcall('PEXPIRE', k, 1000) end,
  pexpireat = function() return redis.pcall('PEXPIREAT', k, 1) end,
  pttl = function() return redis.pcall('PTTL', k) end,
  rpush = function() return redis.pcall('RPUSH', k, '') end,
  lpush = function() return redis.pcall('LPUSH', k, '') end,
  rpop = function() return redis.pcall('RPOP', k) end,
  lpop = function() return redis.pcall('LPOP', k) end,
  llen = function() return redis.pcall('LLEN', k) end,
  lindex = function() return redis.pcall('LINDEX', k, 0) end,
  lrange = function() return redis.pcall('LRANGE', k, 0, 0) end,
  lset = function() return redis.pcall('LSET', k, 0, '') end,
  ltrim = function() return redis.pcall('LTRIM', k, 0, 0) end,
  lrem = function() return redis.pcall('LREM', k, 0, '') end,
  lmove = function() return redis.pcall('LMOVE', k, k, 'LEFT', 'RIGHT') end,
  hget = function() return redis.pcall('HGET', k, '') end,
  hmget = function() return redis.pcall('HMGET', k, '') end,
  hset = function() return redis.pcall('HSET', k, '', '') end,
  hdel = function() return redis.pcall('HDEL', k, '') end,
  hlen = function() return redis.pcall('HLEN', k) end,
  hscan = function() return redis.pcall('HSCAN', k, 0) end,
  zadd = function() return redis.pcall('ZADD', k, 0, '') end,
  zrem = function() return redis.pcall('ZREM', k, '') end,
  zscore = function() return redis.pcall('ZSCORE', k, '') end,
  zcard = function() return redis.pcall('ZCARD', k) end,
  zrange = function() return redis.pcall('ZRANGE', k, 0, 0) end,
  zrangebyscore = function() return redis.pcall('ZRANGEBYSCORE', k, 0, 0) end,
  zremrangebyscore = function() return redis.pcall('ZREMRANGEBYSCORE', k, 0, 0) end,
  scan = function() return redis.pcall('SCAN', 0, 'COUNT', 1) end,
  publish = function() return redis.pcall(publish, channel, '') end,
}

local out = {}
local function tell(name, text) out[#out + 1], out[#out + 2] = name, text end

-- Servers say it in different words, none of which names the command in all versions.
local function denied(text)
  return string.find(text, 'NOPERM', 1, true) or string.find(text, 'executing the script', 1, true)
    or string.find(text, 'ACL failure', 1, true)
end

for i = 3, #ARGV do
  local name = ARGV[i]
  redis.pcall('SET', k, '', 'PX', 1000)
  local reply = try[name] and try[name]()
  if not try[name] then
    tell(name, 'unknown to the probe')
  elseif type(reply) == 'table' and reply.err and denied(reply.err) then
    tell(name, reply.err)
  end
end
redis.pcall('DEL', k)
return out
