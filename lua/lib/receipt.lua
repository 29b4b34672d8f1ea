-- A receipt is the record's own beginning, up to the end of its id, byte by byte: what an owner repeats to name a
-- delivery. It tells a record from every other one, and from itself after another failed attempt.
local function has_receipt(record, receipt)
  return receipt ~= '' and string.find(record, receipt, 1, true) == 1
end
