-- layout: the number of partitions that everything under this prefix is spread over.
--
-- The first to ask decides. A server that refuses writes (full, a replica, no snapshot) still answers.
--
-- KEYS[1]   p                STRING  the number of partitions
-- ARGV[1]   partitions       what the caller is set to
-- ARGV[2]   ttl_ms           the number is kept for so long after the last call
-- Replies   {partitions}     what is stored now, or the caller's if nothing could be
-- Errors    WRONGTYPE when p is a foreign key
-- Cost      O(1)
local p, partitions, ttl_ms = KEYS[1], ARGV[1], ARGV[2]
local stored = redis.call('GET', p)
if not stored then
  redis.pcall('SET', p, partitions, 'PX', ttl_ms)
  return { tonumber(partitions) }
end
-- What is no number is none that a caller may be set to.
if stored == partitions then redis.pcall('PEXPIRE', p, ttl_ms) end
return { tonumber(stored) or 0 }
