-- Append a record to the session's dead letters. The list is capped (oldest go first) and expires as a whole.
-- The entry: `1 <died_ms> <reason length>\n<reason><record>`, the record with its bytes intact.
local function bury(dead, record, reason, now, cap, ttl_ms)
  redis.call('RPUSH', dead, string.format('1 %.0f %d\n', now, #reason) .. reason .. record)
  redis.call('LTRIM', dead, -cap, -1)
  redis.call('PEXPIRE', dead, ttl_ms)
end
