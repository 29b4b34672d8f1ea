-- Builds what scripts see: Redis's allowed part of Lua 5.1 and the `redis` table, closed against new globals.
-- Not there, though Redis has them: load and loadstring, because hostile bytecode breaks the interpreter.
-- Called once per engine with two functions of the host; gives back the table that holds the globals (KEYS and ARGV
-- go in there), the environment of all scripts, and the function that runs one.
local command, sha1hex = ...
-- Scripts can change the library tables, so what is used later is taken now.
local error, pcall, rawget, rawset, select = error, pcall, rawget, rawset, select
local setmetatable, tostring, type = setmetatable, tostring, type
local find, sub = string.find, string.sub

local visible = {}
for _, name in ipairs {
  'assert', 'collectgarbage', 'error', 'getmetatable', 'ipairs', 'next', 'pairs', 'rawequal',
  'rawget', 'select', 'setmetatable', 'tonumber', 'tostring', 'type', 'unpack', 'xpcall', '_VERSION',
  'math', 'string', 'table',
} do visible[name] = _G[name] end
rawset(string, 'dump', nil)

-- An error always has a code: a text of one word gets ERR.
local function failure(text)
  if sub(text, 1, 1) == '-' then text = sub(text, 2) end
  if not find(text, ' ', 1, true) then text = 'ERR ' .. text end
  return { err = text }
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
  -- Raised from Lua: what the host raises is no table to a script.
  call = function(...)
    local reply = command(...)
    if type(reply) == 'table' and rawget(reply, 'err') then error(reply, 0) end
    return reply
  end,
  pcall = command,
  error_reply = function(...) return single('err', ...) end,
  status_reply = function(...) return single('ok', ...) end,
  sha1hex = function(...)
    if select('#', ...) ~= 1 then error({ err = 'ERR wrong number of arguments' }, 0) end
    return sha1hex(tostring((...)))
  end,
  log = function() end,
  LOG_DEBUG = 0, LOG_VERBOSE = 1, LOG_NOTICE = 2, LOG_WARNING = 3,
}

-- What a pcall catches of a failed command is its text, not the table.
local function settle(ok, ...)
  if not ok then
    local caught = ...
    if type(caught) == 'table' and type(caught.err) == 'string' then return false, caught.err end
  end
  return ok, ...
end
visible.pcall = function(...) return settle(pcall(...)) end

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
