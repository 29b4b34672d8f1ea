-- mail_take: the letters that wait for this process; those that were handed in go.
--
-- A letter goes by its text and not by its place: a repeated call takes no other one.
--
-- KEYS[1]   mi               LIST    the receiver's letters
-- ARGV[1]   limit            most letters in one reply
-- ARGV[2..] done             each letter that was handed in
-- Replies   {left, letter...}  left: letters that wait behind these
-- Errors    WRONGTYPE a foreign key is in the way
-- Cost      O(letters)
local mi, limit = KEYS[1], math.max(1, tonumber(ARGV[1]))
for i = 2, #ARGV do redis.call('LREM', mi, 1, ARGV[i]) end
local out = { 0 }
for i, letter in ipairs(redis.call('LRANGE', mi, 0, limit - 1)) do out[i + 1] = letter end
out[1] = redis.call('LLEN', mi) - (#out - 1)
return out
