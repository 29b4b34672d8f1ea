-- For the scripts that run once a message: a local is found faster than a global, and Lua's own work is most of what
-- they cost. Stands in front of the other shared files.
local redis, KEYS, ARGV = redis, KEYS, ARGV
local call = redis.call
local find = string.find
