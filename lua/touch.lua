-- touch: write a known id's mark anew, as it is, so that WAIT behind this covers the push that made the id known.
--
-- WAIT covers what its own connection wrote, and that push went over another one, or over one that is gone.
--
-- KEYS[1..] d                STRING  what marks the ids as known; the first one that is still there is enough
-- Replies   {touched}        1, or 0: none of them is there any more
-- Errors    none of its own
-- Cost      O(keys)
for i = 1, #KEYS do
  local d = KEYS[i]
  local left = redis.call('PTTL', d)
  if left > 0 then return { redis.call('PEXPIRE', d, left) } end
end
return { 0 }
