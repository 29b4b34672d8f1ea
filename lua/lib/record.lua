-- The stored record, format 1: ten numbers, a newline, five counted strings, the body.
-- The body is opaque: nothing here, or anywhere in lua/, looks into it.
local RECORD_1 = '^1 (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+)\n'

-- The fields of a record, or nil when its format is not understood (a first line over 160 bytes is none of ours).
local function record_parse(r)
  local _, head, enqueued, expires, attempts, not_before, id, coalesce, trace, first, last =
    string.find(r, RECORD_1)
  if not head or head > 160 or #r < head + id + coalesce + trace + first + last then return nil end
  return {
    head = head, enqueued = enqueued, enqueued_ms = tonumber(enqueued), expires_ms = tonumber(expires),
    attempts = tonumber(attempts), not_before_ms = tonumber(not_before),
    id_len = tonumber(id), coalesce_len = tonumber(coalesce), trace_len = tonumber(trace),
    first_len = tonumber(first), last_len = tonumber(last),
    id = string.sub(r, head + 1, head + id),
  }
end

local function record_build(enqueued, expires, attempts, not_before, id, coalesce, trace, first, last, body)
  return table.concat({
    '1 ', string.format('%.0f %.0f %d %.0f %d %d %d %d %d\n', enqueued, expires, attempts, not_before,
      #id, #coalesce, #trace, #first, #last),
    id, coalesce, trace, first, last, body,
  })
end

-- The same record with another delivery state; id, coalescing key, trace and body keep their bytes.
local function record_restate(r, f, expires, attempts, not_before, first, last)
  local at = f.head + f.id_len
  local coalesce = string.sub(r, at + 1, at + f.coalesce_len)
  at = at + f.coalesce_len
  local trace = string.sub(r, at + 1, at + f.trace_len)
  at = at + f.trace_len + f.first_len + f.last_len
  return record_build(f.enqueued_ms, expires, attempts, not_before, f.id, coalesce, trace, first, last,
    string.sub(r, at + 1))
end

-- The record after one more failed attempt. The first error is kept beside the newest one.
local function record_failed(r, f, attempts, not_before, err)
  local at = f.head + f.id_len + f.coalesce_len + f.trace_len
  local first = f.first_len > 0 and string.sub(r, at + 1, at + f.first_len) or err
  return record_restate(r, f, f.expires_ms, attempts, not_before, first, err)
end
