-- event_append: keep an event of an SSE stream, give it its number, and wake who reads the stream.
--
-- Numbers go up within a log, and begin at the clock, so that one of a log that expired fits no later one.
--
-- Uses      lib/now_ms.lua
-- KEYS[1]   me               ZSET    the log: number -> `<number>:<event>`
-- KEYS[2]   mf               HASH    last, bytes, floor (newest number that was trimmed), given, reader, writer, nonce
-- ARGV[1]   stream           encoded id of the stream
-- ARGV[2]   event            opaque bytes
-- ARGV[3]   nonce            the same for each try to append this event
-- ARGV[4]   writer           who appends
-- ARGV[5]   ttl_ms           how long the log is kept after this event
-- ARGV[6]   max_events       most events of the log
-- ARGV[7]   max_bytes        most bytes of its events; the newest one stays whatever its size
-- ARGV[8]   inboxes          prefix of the nodes' inbox channels
-- ARGV[9]   publish          PUBLISH | SPUBLISH
-- ARGV[10]  handoff_bytes    largest event that travels in the bell
-- Replies   {"stored", number}
--           {"known", number}    an earlier try had stored it
-- Errors    WRONGTYPE a foreign key is in the way; OOM the server is full; nothing is stored in either case
-- Cost      O(log events); at most 64 old events go in one call
local me, mf = KEYS[1], KEYS[2]
local stream, event, nonce, writer, ttl_ms = ARGV[1], ARGV[2], ARGV[3], ARGV[4], tonumber(ARGV[5])
local max_events, max_bytes = tonumber(ARGV[6]), tonumber(ARGV[7])
local inboxes, publish, handoff_bytes = ARGV[8], ARGV[9], tonumber(ARGV[10])

local last = tonumber(redis.call('HGET', mf, 'last') or 0)
if last > 0 and redis.call('HGET', mf, 'nonce') == nonce then return { 'known', last } end
local number = math.max(last + 1, now_ms())
local shown = string.format('%.0f', number)
local bytes = tonumber(redis.call('HGET', mf, 'bytes') or 0) + #event

redis.call('ZADD', me, shown, shown .. ':' .. event)
local left, floor = redis.call('ZCARD', me), nil
for _ = 1, 64 do
  if left <= 1 or (left <= max_events and bytes <= max_bytes) then break end
  local oldest = redis.call('ZRANGE', me, 0, 0)[1]
  floor = string.match(oldest, '^(%d+):')
  redis.call('ZREM', me, oldest)
  left, bytes = left - 1, bytes - (#oldest - #floor - 1)
end
redis.call('HSET', mf, 'last', shown, 'bytes', string.format('%.0f', bytes), 'writer', writer, 'nonce', nonce)
if floor then redis.call('HSET', mf, 'floor', floor) end
redis.call('PEXPIRE', me, ttl_ms)
redis.call('PEXPIRE', mf, ttl_ms)

local node = string.match(redis.call('HGET', mf, 'reader') or '', '^[^:.]+')
if node then
  local frame = '@mcp.event ' .. stream .. ' ' .. string.format('%.0f', last) .. ' ' .. shown
  if #event <= handoff_bytes then frame = frame .. '\n' .. event end
  redis.pcall(publish, inboxes .. node, frame)
end
return { 'stored', number }
