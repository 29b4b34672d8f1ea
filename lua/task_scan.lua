-- task_scan: the keys of a group's tasks, a page at a time, and what its queue holds. For operators; writes nothing.
--
-- There is no index of all tasks, which every change would have to pay for: this walks over the server's keys. A task
-- that is there all the while is in at least one page; it may be in two.
--
-- KEYS[1]   legs             ZSET    waiting and running legs -> when they may be taken
-- KEYS[2]   idle             ZSET    idle workers -> until when they count on being rung
-- ARGV[1]   pattern          what the keys of the group's tasks look like
-- ARGV[2]   cursor           0, then what the last page said
-- ARGV[3]   count            about how many of the server's keys to look at
-- Replies   {cursor, legs, idle, {key, ...}}  the cursor is text, 0: that was the last page; keys in order
-- Errors    WRONGTYPE a foreign key is in the way; ERR the cursor is none
-- Cost      O(count)
local legs, idle = redis.call('ZCARD', KEYS[1]), redis.call('ZCARD', KEYS[2])
local page = redis.call('SCAN', ARGV[2], 'MATCH', ARGV[1], 'COUNT', ARGV[3])
table.sort(page[2])
return { page[1], legs, idle, page[2] }
