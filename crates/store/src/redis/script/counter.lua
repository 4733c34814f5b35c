-- Counters of one server, each in one step.
--
-- KEYS[i] is <prefix>:<domain>:<policy>:{<partition>}:<window number>, and ARGV[i] the operation on
-- it. Further KEYS only declare the keys of overrides, for servers that demand it. The keys are
-- independent of each other: one that fails fails alone, so every command that may fail is called
-- by pcall. An error in place of all replies means that nothing was done for any key.
--
-- A number in ARGV[i] is a double of eight bytes, little-endian: exact up to 2^53 - 1, and far
-- cheaper to read than text.
-- reserve: window number, window_s, offset_s, quota, want, min, spare, count_denied (0|1), stem; and
--          the override. stem is the length of the key before the window number: the script reads
--          the override from <stem>override. If stem is 0, the override is the text after the
--          numbers, and no text means no override.
-- refund:  units
--
-- Replies {now_ms, ...} with three values for each key, in their order:
--          granted, used, quota in force
--          -1, 0, 0: that window is not the current one, nothing was changed
--          -2, 0, 0: the override cannot be read on this node now, nothing was changed
--          -3, refunded units, 0
--          an error, 0, 0
--
-- Numbers are at most 2^53 - 1: exact in Lua, and never sent to Redis in exponent form.
local MOST = 9007199254740991
local GRACE_MS = 10000 -- a counter outlives its window by this much
local RESERVE = '<ddddddddd'
local RESERVE_BYTES = 72
local REFUND = '<d'
local REFUND_BYTES = 8

local call, pcall, unpack = redis.call, redis.pcall, struct.unpack
local floor, least, most = math.floor, math.min, math.max

local time = call('TIME')
local now_s = tonumber(time[1])
local now_ms = now_s * 1000 + floor(tonumber(time[2]) / 1000)

local function used_of(value)
  local used = tonumber(value)
  if not used then
    return nil
  end
  return least(most(0, used), MOST)
end

-- The error of a command that failed.
local function fault_of(reply)
  return type(reply) == 'table' and reply.err and reply
end

local function refund(key, operation)
  -- The time to live shows whether the window still runs, without its offset.
  local ttl = pcall('PTTL', key)
  if fault_of(ttl) then
    return ttl, 0, 0
  end
  if ttl <= GRACE_MS then
    return -3, 0, 0
  end
  local used = used_of(pcall('GET', key)) or 0
  local units = least(unpack(REFUND, operation), used)
  local fault
  if units > 0 and units == used then
    -- A counter at 0 means the same as no counter. A time to live of 0 deletes it, without the right
    -- to DEL.
    fault = fault_of(pcall('PEXPIRE', key, 0))
  elseif units > 0 then
    fault = fault_of(pcall('DECRBY', key, units))
  end
  if fault then
    return fault, 0, 0
  end
  return -3, units, 0
end

local function reserve(key, operation)
  local number, window, offset, quota, want, min, spare, count_denied, stem = unpack(RESERVE, operation)
  if floor((now_s + offset) / window) ~= number then
    return -1, 0, 0
  end

  local override
  if stem > 0 then
    override = pcall('GET', string.sub(key, 1, stem) .. 'override')
    if fault_of(override) then
      return -2, 0, 0
    end
  else
    override = string.sub(operation, RESERVE_BYTES + 1)
  end
  if override then
    if override == 'unlimited' then
      quota = MOST
    elseif override == 'blocked' then
      quota = 0
    elseif string.match(override, '^%d+$') then
      quota = least(tonumber(override), MOST)
    end
  end

  local ttl_ms = ((number + 1) * window - offset) * 1000 - now_ms + GRACE_MS
  local value = pcall('GET', key)
  local used = 0
  if value then
    if fault_of(value) then
      return value, 0, 0
    end
    used = used_of(value)
    if not used then
      return redis.error_reply('ERR the counter holds no number'), 0, 0
    end
    local ttl = pcall('PTTL', key)
    if fault_of(ttl) then
      return ttl, 0, 0
    end
    if ttl < 0 then
      pcall('PEXPIRE', key, ttl_ms)
    end
  end

  local left = most(0, quota - used)
  local needed = 0
  if left >= min then
    needed = least(want, left)
  end
  local granted = needed
  -- Spare units are granted only if all wanted units are.
  if spare > 0 and needed == want then
    granted = needed + least(spare, floor((left - needed) / 8))
  end
  local taken = granted
  if count_denied == 1 then
    -- In this order each step is exact: if units are refused, none are spare.
    taken = taken + (want - needed)
  end
  taken = least(taken, MOST - used)
  if taken > 0 then
    local fault
    if value then
      fault = fault_of(pcall('INCRBY', key, taken))
    else
      fault = fault_of(pcall('SET', key, taken, 'PX', ttl_ms))
    end
    if fault then
      return fault, 0, 0
    end
  end
  return granted, used + taken, quota
end

local replies = {now_ms}
for i = 1, #ARGV do
  local key, operation, at = KEYS[i], ARGV[i], 3 * i - 1
  if #operation == REFUND_BYTES then
    replies[at], replies[at + 1], replies[at + 2] = refund(key, operation)
  else
    replies[at], replies[at + 1], replies[at + 2] = reserve(key, operation)
  end
end
return replies
