-- One counter, one step: KEYS[1] is <prefix>:<domain>:<policy>:{<partition>}:<window number>.
--
-- reserve: ARGV = 'reserve', window number, window_s, offset_s, quota, want, min, spare, count_denied (0|1),
--          override ('?' reads it from its key; '' says that there is none; else its value)
--          replies {0, now_ms}: that window is not the current one, nothing was changed
--                  {1, now_ms, granted, used, quota, reset_ms}
--                  {2, now_ms}: the override cannot be read on this node now, nothing was changed
-- return:  ARGV = 'return', units
--          replies {3, now_ms, units taken off}
--
-- Numbers stay at most 2^53 - 1: exact in Lua, and written with '%.0f', never in exponent form.
local MOST = 9007199254740991
local GRACE_MS = 10000 -- a counter outlives its window by this much

local key = KEYS[1]
local time = redis.call('TIME')
local now_ms = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)

local function used_of(value)
  local used = tonumber(value)
  if not used then
    return nil
  end
  return math.min(math.max(0, used), MOST)
end

if ARGV[1] == 'return' then
  -- The time to live tells whether the window still runs, whatever its offset.
  if redis.call('PTTL', key) <= GRACE_MS then
    return {3, now_ms, 0}
  end
  local used = used_of(redis.call('GET', key))
  local units = math.min(tonumber(ARGV[2]), used or 0)
  if units > 0 then
    redis.call('DECRBY', key, string.format('%.0f', units))
  end
  return {3, now_ms, units}
end

local number, window, offset = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local quota, want, min, spare = tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7]), tonumber(ARGV[8])

if math.floor((tonumber(time[1]) + offset) / window) ~= number then
  return {0, now_ms}
end

local override = ARGV[10]
if override == '?' then
  override = redis.pcall('GET', string.sub(key, 1, -(#ARGV[2] + 2)) .. ':override')
  if type(override) == 'table' then
    return {2, now_ms}
  end
end
if override == 'unlimited' then
  quota = MOST
elseif override == 'blocked' then
  quota = 0
elseif override and string.match(override, '^%d+$') then
  quota = math.min(tonumber(override), MOST)
end

local ttl_ms = ((number + 1) * window - offset) * 1000 - now_ms + GRACE_MS
local value = redis.call('GET', key)
local used = 0
if value then
  used = used_of(value)
  if not used then
    return redis.error_reply('ERR the counter holds no number')
  end
  if redis.call('PTTL', key) < 0 then
    redis.call('PEXPIRE', key, string.format('%.0f', ttl_ms))
  end
end

local left = math.max(0, quota - used)
local needed = 0
if left >= min then
  needed = math.min(want, left)
end
local granted = needed
-- All that was wanted is granted, or nobody waits and nothing was wanted.
if needed == want then
  granted = needed + math.min(spare, math.floor((left - needed) / 8))
end
local taken = granted
if ARGV[9] == '1' then
  taken = taken + want - needed
end
taken = math.min(taken, MOST - used)
if taken > 0 then
  if value then
    redis.call('INCRBY', key, string.format('%.0f', taken))
  else
    redis.call('SET', key, string.format('%.0f', taken), 'PX', string.format('%.0f', ttl_ms))
  end
end
return {1, now_ms, granted, used + taken, quota, ttl_ms - GRACE_MS}
