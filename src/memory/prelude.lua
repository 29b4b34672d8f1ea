-- Builds what scripts see: Redis's allowed part of Lua 5.1 and the `redis` table, closed against new globals.
-- Called once per engine with two functions of the host; gives back the table that holds the globals (KEYS and ARGV
-- go in there), the environment of all scripts, and the function that runs one.
local command, sha1hex = ...
local error, pcall, rawget, rawset, setmetatable, type, tostring = error, pcall, rawget, rawset, setmetatable, type, tostring
local match, sub = string.match, string.sub

local visible = {}
for _, name in ipairs {
  'assert', 'collectgarbage', 'error', 'getmetatable', 'ipairs', 'load', 'loadstring', 'next', 'pairs', 'pcall',
  'rawequal', 'rawget', 'select', 'setmetatable', 'tonumber', 'tostring', 'type', 'unpack', 'xpcall', '_VERSION',
  'math', 'string', 'table',
} do visible[name] = _G[name] end
string.dump = nil

-- "-CODE text" and "text" both become an error table; the second gets the code ERR.
local function failure(text)
  if sub(text, 1, 1) ~= '-' then return { err = 'ERR ' .. text } end
  local code, rest = match(text, '^%-([^ ]*) (.*)$')
  if code then return { err = code .. ' ' .. rest } end
  return { err = 'ERR ' .. sub(text, 2) }
end

local function single(field, ...)
  local text = ...
  if select('#', ...) ~= 1 or type(text) ~= 'string' then
    return { err = 'ERR wrong number or type of arguments' }
  end
  if field == 'err' then return failure(text) end
  return { ok = text }
end

visible.redis = {
  -- Raised from Lua, so that a script's own pcall finds the same table as in Redis.
  call = function(...)
    local reply = command(...)
    if type(reply) == 'table' and rawget(reply, 'err') then error(reply, 0) end
    return reply
  end,
  pcall = function(...) return command(...) end,
  error_reply = function(...) return single('err', ...) end,
  status_reply = function(...) return single('ok', ...) end,
  sha1hex = function(...)
    if select('#', ...) ~= 1 then error(failure('wrong number of arguments'), 0) end
    return sha1hex(tostring((...)))
  end,
  log = function() end,
  LOG_DEBUG = 0, LOG_VERBOSE = 1, LOG_NOTICE = 2, LOG_WARNING = 3,
}

local environment = {}
visible._G = environment
visible.rawset = function(target, key, value)
  if target == environment then error('Attempt to modify a readonly table', 2) end
  return rawset(target, key, value)
end
setmetatable(visible, {
  __index = function(_, name)
    error("Script attempted to access nonexistent global variable '" .. tostring(name) .. "'", 2)
  end,
})
setmetatable(environment, {
  __index = visible,
  __newindex = function() error('Attempt to modify a readonly table', 2) end,
  __metatable = false,
})

return visible, environment, function(script) return pcall(script) end
