-- leave: take this node out of the index after it has given its sessions back.
--
-- KEYS[1]   n                ZSET    node -> deadline of its lease
-- ARGV[1]   node             this process
-- Replies   {known}          1 when the lease was still there, else 0
-- Errors    WRONGTYPE when n is a foreign key
-- Cost      O(log nodes)
return { redis.call('ZREM', KEYS[1], ARGV[1]) }
