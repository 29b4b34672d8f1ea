-- mail_send: a letter for one process: what came in here and belongs there.
--
-- Uses      lib/now_ms.lua
-- KEYS[1]   mi               LIST    the receiver's letters
-- KEYS[2]   n                ZSET    node -> deadline of its lease
-- ARGV[1]   node             the receiver's process
-- ARGV[2]   letter           opaque bytes
-- ARGV[3]   ttl_ms           how long letters wait
-- ARGV[4]   limit            most letters that wait
-- ARGV[5]   inboxes          prefix of the nodes' inbox channels
-- ARGV[6]   publish          PUBLISH | SPUBLISH
-- Replies   {"sent"}
--           {"gone"}    the process is not there any more; nothing was written
--           {"full"}    so many letters wait already; nothing was written
-- Errors    WRONGTYPE a foreign key is in the way; OOM the server is full
-- Cost      O(log nodes)
local mi, n = KEYS[1], KEYS[2]
local node, letter, ttl_ms, limit = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local inboxes, publish = ARGV[5], ARGV[6]
if tonumber(redis.call('ZSCORE', n, node) or 0) <= now_ms() then return { 'gone' } end
if redis.call('LLEN', mi) >= limit then return { 'full' } end
redis.call('RPUSH', mi, letter)
redis.call('PEXPIRE', mi, ttl_ms)
redis.pcall(publish, inboxes .. node, '@mcp mail')
return { 'sent' }
