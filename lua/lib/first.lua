-- The queue's own expiry is extended, never shortened: an abandoned queue vanishes after its last record. It is set
-- a little late (a quarter of what is left, a minute at most), so that a busy queue is not touched by every push.
-- Times go to commands as text: Redis prints a number of Lua's with seventeen digits, which is slow.
local function a_little_late(now, expires)
  return string.format('%.0f', expires + math.min(math.floor((expires - now) / 4), 60000))
end

local function extend_expiry(q, now, expires, late)
  if now + redis.call('PTTL', q) < expires then
    redis.call('PEXPIREAT', q, late or a_little_late(now, expires))
  end
end

-- Sends a node its doorbells, four strings each. One travels bare, several with their lengths.
local function send_bells(publish, inbox, bells)
  redis.pcall(publish, inbox, table.concat(bells, '', #bells == 4 and 2 or 1))
end

-- Records made their lists' length 1: index their sessions, at most 64, and ring the owners, each once or for about
-- every 64 KiB. Answers the error of an index that refuses; then none of them is indexed.
local function index_and_ring(s, w, sids, records, look_at, inboxes, publish, handoff_bytes)
  -- The one that only reads goes first: when it fails, there is no entry in `w` to take back.
  local owners = pcall_some('HMGET', s, sids, 1, #sids)
  if owners.err then return owners end
  local entries = {}
  for i, sid in ipairs(sids) do entries[2 * i - 1], entries[2 * i] = look_at, sid end
  local indexed = pcall_some('ZADD', w, entries, 1, #entries)
  if type(indexed) == 'table' then return indexed end

  local nodes, bells, bytes, node, owned, mark, marked = {}, {}, {}, '', ':', '', 0
  for i, owner in ipairs(owners) do
    if owner then
      if string.find(owner, owned, 1, true) ~= 1 then
        node = string.match(owner, '^[^:]*')
        owned = node .. ':'
      end
      local list, sid, record = bells[node], sids[i], records[i]
      if not list then
        list, bytes[node] = {}, 0
        bells[node], nodes[#nodes + 1] = list, node
      end
      local size, space = #sid, ' '
      if #record <= handoff_bytes then size = size + 1 + #record else space, record = '', '' end
      if bytes[node] > 0 and bytes[node] + size > 65536 then
        send_bells(publish, inboxes .. node, list)
        list, bytes[node] = {}, 0
        bells[node] = list
      end
      bytes[node] = bytes[node] + size
      if size ~= marked then marked, mark = size, '&' .. size .. ' ' end
      local n = #list
      list[n + 1], list[n + 2], list[n + 3], list[n + 4] = mark, sid, space, record
    end
  end
  for _, each in ipairs(nodes) do send_bells(publish, inboxes .. each, bells[each]) end
end

-- The same for one record just pushed. Answers 1, or the error: then the record is taken back, so that an error always
-- means "not queued".
local function first_in_queue(q, s, w, sid, record, look_at, inboxes, publish, handoff_bytes)
  local failed = index_and_ring(s, w, { sid }, { record }, look_at, inboxes, publish, handoff_bytes)
  if not failed then return 1 end
  redis.call('RPOP', q)
  return failed
end
