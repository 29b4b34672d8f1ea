-- fastmcp_take: what FastMCP 3 workers have for sessions. Messages move from FastMCP's lists into lists of the bridge,
-- where they stay until fastmcp_done: a bridge that dies finds them again.
--
-- An entry is `<id> <expires_ms> <text>`, the text as FastMCP's worker wrote it. The id stays with the message, whoever
-- takes it up again.
--
-- Uses      lib/now_ms.lua
-- KEYS[1..] f taken          LISTs   for each session: FastMCP's list, its tail = next; the bridge's, its head = next
-- ARGV[1]   stamp            new for each call; ids are made of it
-- ARGV[2]   want             most messages of a session
-- ARGV[3]   ttl_ms           life of a message whose list has no expiry
-- ARGV[4]   keep_ms          life of the bridge's lists
-- Replies   {now_ms, {entry...}, ...}  for each session, in order: what is to be handed on, oldest first
-- Errors    none of its own; a session with a foreign key in the way has no entries
-- Cost      O(want) a session
local stamp, want, ttl_ms, keep_ms = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local now = now_ms()
local count = 0

local function take_one(q, taken)
  local have, left = redis.call('LLEN', taken), redis.call('LLEN', q)
  if have < want and left > 0 then
    local expires = now + redis.call('PTTL', q)
    if expires <= now then expires = now + ttl_ms end
    for _ = 1, math.min(left, want - have) do
      count = count + 1
      -- In before it is out: a refused write loses nothing.
      redis.call('RPUSH', taken, string.format('%s:%d %.0f ', stamp, count, expires) .. redis.call('LINDEX', q, -1))
      redis.call('RPOP', q)
    end
    redis.call('PEXPIRE', taken, keep_ms)
  end
  return redis.call('LRANGE', taken, 0, want - 1)
end

local out = { now }
for i = 1, #KEYS, 2 do
  local ok, entries = pcall(take_one, KEYS[i], KEYS[i + 1])
  out[#out + 1] = ok and entries or {}
end
return out
