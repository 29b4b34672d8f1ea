-- dead_purge: remove dead letters for good.
--
-- Uses      lib/record.lua, lib/dead_entry.lua
-- KEYS[1]   dead             LIST    the session's dead letters
-- ARGV[1]   id               the message, or empty for all, whatever their format
-- Replies   {purged, left}
-- Errors    WRONGTYPE a foreign key is in the way
-- Cost      O(dead letters)
local dead, id = KEYS[1], ARGV[1]
local total = redis.call('LLEN', dead)
if id == '' then
  redis.call('DEL', dead)
  return { total, 0 }
end

local unwanted = {}
for from = 0, total - 1, 64 do
  for _, entry in ipairs(redis.call('LRANGE', dead, from, from + 63)) do
    local _, f = dead_parse(entry)
    if f and f.id == id then unwanted[#unwanted + 1] = entry end
  end
end
for _, entry in ipairs(unwanted) do redis.call('LREM', dead, 1, entry) end
return { #unwanted, total - #unwanted }
