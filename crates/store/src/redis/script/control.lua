-- What operators read and change, each in one step. All keys have the hash tag {<domain>}, except
-- the hash of all domains.
--
-- ARGV[1] names the operation. KEYS, further ARGV and the reply:
-- read:    KEYS: a hash. ARGV: the most fields, the most bytes of a value.
--          {now_ms, version, fields left out, name, value, ...}. A key that is no hash counts as
--          one field left out.
-- change:  KEYS: the hash of dials, the hash that is changed, the history. ARGV: a field; 1 or 0,
--          and the value that the field must still hold; 1 or 0, and its new value; the entry for
--          the history (empty: no entry and no new version); the most entries of the history; the
--          most bytes of a value: a larger one, or one that is no JSON object, counts as none.
--          {now_ms, version}, or {now_ms, -1} if the field holds something else: nothing was
--          changed.
-- upsert:  KEYS: a hash. ARGV: the most fields; how many milliseconds the hash is kept; how many
--          names follow; the names of fields to delete first; name, value, ... A new field beyond
--          the most is not set.
--          {now_ms}
-- history: KEYS: a list. ARGV: how many entries.
--          {now_ms, entry, ...}
--
-- If a key has another type, or a right is missing, the reply is an error and nothing was changed.
local VERSION = '#version'

local call, pcall = redis.call, redis.pcall
local time = call('TIME')
local now_ms = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)

local function failed(reply)
  return type(reply) == 'table' and reply.err
end

local function version_of(value)
  local version = value and string.match(value, '^%d+$') and tonumber(value) or 0
  return version < 9007199254740991 and version or 0
end

local operations = {}

function operations.read()
  local found = pcall('HGETALL', KEYS[1])
  if failed(found) then
    if string.find(found.err, 'WRONGTYPE', 1, true) == 1 then
      return {now_ms, 0, 1}
    end
    return found
  end
  local most, bytes = 2 * tonumber(ARGV[2]), tonumber(ARGV[3])
  local reply, version, left_out = {now_ms, 0, 0}, 0, 0
  for i = 1, #found, 2 do
    local name, value = found[i], found[i + 1]
    if name == VERSION then
      version = version_of(value)
    elseif #name > bytes + bytes or #value > bytes or string.sub(value, 1, 1) ~= '{' or #reply > most then
      left_out = left_out + 1
    else
      reply[#reply + 1], reply[#reply + 2] = name, value
    end
  end
  reply[2], reply[3] = version, left_out
  return reply
end

function operations.change()
  local dials, hash, history = KEYS[1], KEYS[2], KEYS[3]
  local field, event = ARGV[2], ARGV[7]
  local version = pcall('HGET', dials, VERSION)
  if failed(version) then
    return version
  end
  version = version_of(version)
  local held = pcall('HGET', hash, field)
  if failed(held) then
    return held
  end
  if held and (#held > tonumber(ARGV[9]) or string.sub(held, 1, 1) ~= '{') then
    held = false
  end
  if held ~= (ARGV[3] == '1' and ARGV[4]) then
    return {now_ms, -1}
  end
  local done
  if ARGV[5] == '1' then
    done = pcall('HSET', hash, field, ARGV[6])
  else
    done = pcall('HDEL', hash, field)
  end
  if failed(done) then
    return done
  end
  if event ~= '' then
    version = version + 1
    pcall('HSET', dials, VERSION, string.format('%.0f', version))
    -- A history of the wrong type must not prevent a change.
    pcall('LPUSH', history, event)
    pcall('LTRIM', history, 0, tonumber(ARGV[8]) - 1)
  end
  return {now_ms, version}
end

function operations.upsert()
  local key, most, first = KEYS[1], tonumber(ARGV[2]), 5 + tonumber(ARGV[4])
  for i = 5, first - 1 do
    local done = pcall('HDEL', key, ARGV[i])
    if failed(done) then
      return done
    end
  end
  local found = pcall('HGETALL', key)
  if failed(found) then
    return found
  end
  local there, count = {}, #found / 2
  for i = 1, #found, 2 do
    there[found[i]] = true
  end
  for i = first, #ARGV, 2 do
    local name = ARGV[i]
    if there[name] or count < most then
      local done = pcall('HSET', key, name, ARGV[i + 1])
      if failed(done) then
        return done
      end
      if not there[name] then
        there[name], count = true, count + 1
      end
    end
  end
  local done = pcall('PEXPIRE', key, ARGV[3])
  if failed(done) then
    return done
  end
  return {now_ms}
end

function operations.history()
  local entries = pcall('LRANGE', KEYS[1], 0, tonumber(ARGV[2]) - 1)
  if failed(entries) then
    return entries
  end
  table.insert(entries, 1, now_ms)
  return entries
end

return operations[ARGV[1]]()
