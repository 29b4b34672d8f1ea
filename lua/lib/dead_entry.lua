-- A dead letter taken apart: its record and the record's fields (nil when the format is not understood).
local function dead_parse(entry)
  local _, head, reason = string.find(entry, '^1 %d+ (%d+)\n')
  if not head then return entry, nil end
  local record = string.sub(entry, head + reason + 1)
  return record, record_parse(record)
end
