-- topic_leave: a session takes part in topics no more, or a node listens to them no more.
--
-- KEYS[1..] m                HASH    for each topic: its sessions, or its listening nodes
-- ARGV[1]   member           encoded session id, or node
-- Replies   {left}           how many topics it was in
-- Errors    WRONGTYPE a foreign key is in the way; it may have left some of the topics
-- Cost      O(1) a topic
local left = 0
for _, m in ipairs(KEYS) do left = left + redis.call('HDEL', m, ARGV[1]) end
return { left }
