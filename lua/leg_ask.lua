-- leg_ask: a running leg puts a request to the client and goes on when it is answered; or asks what became of it.
--
-- A key is one request for the whole life of the task: a leg that is run again finds its request open, or answered.
--
-- Uses      lib/now_ms.lua, lib/task.lua
-- KEYS[1]   t                HASH    the task
-- ARGV[1]   address          the task's name in indexes and signals
-- ARGV[2]   lease            the token of the lease
-- ARGV[3]   key              encoded key
-- ARGV[4]   request          its bytes
-- ARGV[5]   max_keys         most requests of a task
-- ARGV[6]   inboxes          prefix of the nodes' inbox channels
-- ARGV[7]   publish          PUBLISH | SPUBLISH
-- Replies   {"answered", answer}; {"open", life_ms}  it waits for an answer, life_ms: until the task expires;
--           {"cancelled"} the client wants the task to stop; {"full"} too many requests; {"reused"} the key belongs to
--           a request that is not open any more; {"fenced"}, {"gone"} as leg_renew
-- Errors    WRONGTYPE a foreign key is in the way; OOM the server is full; nothing is stored in either case
-- Cost      O(requests)
local t = KEYS[1]
local address, lease, key, request, max_keys = ARGV[1], ARGV[2], ARGV[3], ARGV[4], tonumber(ARGV[5])
local inboxes, publish = ARGV[6], ARGV[7]

local f = task_read(t)
if not f then return { 'gone' } end
if f.terminal or f.lease ~= lease then return { 'fenced' } end
local answer = redis.call('HGET', t, 'o:' .. key)
if answer then return { 'answered', answer } end
if f.cancel == 1 then return { 'cancelled' } end
local now = now_ms()
if has_key(f.open, key) then return { 'open', f.expires_ms - now } end
local used = 0
for other in string.gmatch(f.used, '%S+') do
  if other == key then return { 'reused' } end
  used = used + 1
end
if used >= max_keys then return { 'full' } end
redis.call('HSET', t, 'i:' .. key, request, 'open', (f.open == '' and '' or f.open .. ' ') .. key,
  'used', (f.used == '' and '' or f.used .. ' ') .. key, 'status', 'input_required')
task_changed(t, f, now)
ring_watchers(f, address, now, inboxes, publish)
return { 'open', f.expires_ms - now }
