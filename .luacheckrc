-- What a script may use. No os, io, cjson and the like: scripts keep to what every server and the engine in memory have.
std = "none"
read_globals = {
  "KEYS", "ARGV", "redis",
  "string", "table", "math",
  "assert", "error", "ipairs", "next", "pairs", "pcall", "select", "tonumber", "tostring", "type", "unpack",
}
max_line_length = 120
-- A `-- Uses` line is one line, whatever it names.
max_comment_line_length = 140
