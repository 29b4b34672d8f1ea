-- tidy: drop expired heads of sessions that nobody serves, and take emptied ones out of the index.
--
-- Uses      lib/now_ms.lua, lib/record.lua
-- KEYS[1]   w                ZSET    sessions with pending messages -> when to look again
-- KEYS[2..] q                LIST    for each session: its records
-- ARGV[1..] sid              for each session: encoded session id
-- Replies   {expired}        how many records were dropped
-- Errors    none of its own; a session with a foreign key in the way is passed over
-- Cost      O(1) a dropped record, at most 256 a session and call
local w = KEYS[1]
local now = now_ms()
local expired = 0

local function tidy_one(q, sid)
  for _ = 1, 256 do
    local r = redis.call('LINDEX', q, 0)
    if not r then
      redis.call('ZREM', w, sid)
      return
    end
    local f = record_parse(r)
    if not f or f.expires_ms > now then return end
    redis.call('LPOP', q)
    expired = expired + 1
  end
end

for i, sid in ipairs(ARGV) do pcall(tidy_one, KEYS[i + 1], sid) end
return { expired }
