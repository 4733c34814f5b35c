-- What operators read and change, each in one step. All keys have the hash tag {<domain>}, except
-- the hash of all domains.
--
-- ARGV[1] names the operation. KEYS, further ARGV and the reply:
-- read:    KEYS: a hash. ARGV: the most fields, the most bytes of a value.
--          {now_ms, version, when that was made in microseconds, fields left out, name, value,
--          ...}. A key that is no hash counts as one field left out.
-- change:  KEYS: the hash of dials, the hash that is changed, the history. ARGV: a field; 1 or 0,
--          and the value that the field must still hold; 1 or 0, and its new value; the entry for
--          the history (empty: no entry and no new version); the most entries of the history; the
--          most bytes of a value: a larger one, or one that is no JSON object, counts as none.
--          {now_ms, version}, or {now_ms, -1} if the field holds something else: nothing was
--          changed.
-- publish: KEYS: the hash of dials, the records and the texts of published documents, the history.
--          ARGV: the field of the last record; the record that it must still hold (empty: none);
--          the number of the document; its record; the new last record; its text (empty: none);
--          the number that is deleted (empty: none); the entry for the history; the most entries
--          of the history; the most bytes of a record: a larger one, or one that is no JSON object,
--          counts as none.
--          {now_ms, version}, or {now_ms, -1} if the field holds something else: nothing was
--          changed.
-- forget:  KEYS: the records and the texts of published documents. ARGV: the field of the last
--          record; the record that it must still hold (empty: none); the most bytes of a record, as
--          above.
--          {now_ms, 0}, or {now_ms, -1} if the field holds something else: nothing was deleted.
-- upsert:  KEYS: a hash. ARGV: the most fields; how many milliseconds the hash is kept; how many
--          names follow; the names of fields to delete first; name, value, ... A new field beyond
--          the most is not set.
--          {now_ms}
-- release: KEYS: the hash of slots. ARGV: the name of a worker, or what comes before a dot in the names
--          of several; all, if it is empty.
--          {now_ms, value, ...}: what the fields held that were deleted
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

-- The field says how many changes there were, and when the last one was made: `5-1764288000000000`.
-- A Redis that lost its last changes makes others under their numbers.
local function version_of(value)
  local number, at = string.match(value or '', '^(%d+)%-?(%d*)$')
  local version, at_us = tonumber(number or 0), tonumber(at) or 0
  if version >= 9007199254740991 or at_us >= 9007199254740991 then
    return 0, 0
  end
  return version, at_us
end

local operations = {}

function operations.read()
  local found = pcall('HGETALL', KEYS[1])
  if failed(found) then
    if string.find(found.err, 'WRONGTYPE', 1, true) == 1 then
      return {now_ms, 0, 0, 1}
    end
    return found
  end
  local most, bytes = 2 * tonumber(ARGV[2]), tonumber(ARGV[3])
  local reply, left_out = {now_ms, 0, 0, 0}, 0
  for i = 1, #found, 2 do
    local name, value = found[i], found[i + 1]
    if name == VERSION then
      reply[2], reply[3] = version_of(value)
    elseif #name > bytes + bytes or #value > bytes or string.sub(value, 1, 1) ~= '{' or #reply > most then
      left_out = left_out + 1
    else
      reply[#reply + 1], reply[#reply + 2] = name, value
    end
  end
  reply[4] = left_out
  return reply
end

-- The value of a field that an operator may have seen, or its error.
local function held_by(hash, field, bytes)
  local held = pcall('HGET', hash, field)
  if failed(held) then
    return held
  end
  return held and #held <= tonumber(bytes) and string.sub(held, 1, 1) == '{' and held
end

-- Makes a new version with an entry in the history.
local function new_version(dials, version, history, event, most)
  local at_us = tonumber(time[1]) * 1000000 + tonumber(time[2])
  pcall('HSET', dials, VERSION, string.format('%.0f-%.0f', version + 1, at_us))
  -- A history of the wrong type must not prevent a change.
  pcall('LPUSH', history, event)
  pcall('LTRIM', history, 0, tonumber(most) - 1)
  return version + 1
end

function operations.change()
  local dials, hash, history = KEYS[1], KEYS[2], KEYS[3]
  local field, event = ARGV[2], ARGV[7]
  local version = pcall('HGET', dials, VERSION)
  if failed(version) then
    return version
  end
  version = version_of(version)
  local held = held_by(hash, field, ARGV[9])
  if failed(held) then
    return held
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
    version = new_version(dials, version, history, event, ARGV[8])
  end
  return {now_ms, version}
end

function operations.publish()
  local dials, records, texts, history = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
  local last, old, number, record, new, text, dropped = unpack(ARGV, 2, 8)
  local version = pcall('HGET', dials, VERSION)
  if failed(version) then
    return version
  end
  version = version_of(version)
  local held = held_by(records, last, ARGV[11])
  if failed(held) then
    return held
  end
  if (held or '') ~= old then
    return {now_ms, -1}
  end
  -- The text first: a record of a document without a text would be in force nowhere.
  local done = text ~= '' and pcall('HSET', texts, number, text)
  done = failed(done) and done or pcall('HSET', records, number, record, last, new)
  if failed(done) then
    return done
  end
  if dropped ~= '' then
    pcall('HDEL', records, dropped)
    pcall('HDEL', texts, dropped)
  end
  return {now_ms, new_version(dials, version, history, ARGV[9], ARGV[10])}
end

function operations.forget()
  local held = held_by(KEYS[1], ARGV[2], ARGV[4])
  if failed(held) then
    return held
  end
  if (held or '') ~= ARGV[3] then
    return {now_ms, -1}
  end
  local done = pcall('DEL', KEYS[1], KEYS[2])
  return failed(done) and done or {now_ms, 0}
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

function operations.release()
  local key, of = KEYS[1], ARGV[2]
  local found = pcall('HGETALL', key)
  if failed(found) then
    return found
  end
  local reply, start = {now_ms}, of .. '.'
  for i = 1, #found, 2 do
    local name = found[i]
    if of == '' or name == of or string.sub(name, 1, #start) == start then
      local done = pcall('HDEL', key, name)
      if failed(done) then
        return done
      end
      reply[#reply + 1] = found[i + 1]
    end
  end
  return reply
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
