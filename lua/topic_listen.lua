-- topic_listen: a node wants to hear of topics. It says so again well before ttl_ms is over.
--
-- Uses      lib/small_writes.lua
-- KEYS[1..] l                HASH    for each topic: listening node -> nothing
-- ARGV[1]   node             this process
-- ARGV[2]   ttl_ms           the whole of l goes when nobody said so for this long
-- Replies   {added}          how many topics the node is new in
-- Errors    WRONGTYPE a foreign key is in the way; OOM the server is full; it may listen to some of the topics
-- Cost      O(1) a topic
local added = 0
for _, l in ipairs(KEYS) do
  allow_small_writes(l)
  added = added + redis.call('HSET', l, ARGV[1], '')
  redis.call('PEXPIRE', l, ARGV[2])
end
return { added }
