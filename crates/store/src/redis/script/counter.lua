-- Counters of one server, each in one step.
--
-- KEYS[i] is <prefix>:<domain>:<policy>:{<partition>}:<counter>, and ARGV[i] the operation on it.
-- Further KEYS only declare the keys of overrides, for servers that demand it. The keys are
-- independent of each other: one that fails fails alone, so every command that may fail is called
-- by pcall. An error in place of all replies means that nothing was done for any key.
--
-- A fixed window or one of the calendar has a counter of its own, a whole number. A sliding window
-- has one for all slices: the number of the first slice, and the units of it and of each one after
-- it.
--
-- ARGV[i] begins with a letter. Each number after it is a double of eight bytes, little-endian:
-- exact up to 2^53 - 1, and far cheaper to read than text. So are the numbers of a sliding window.
-- r: reserve: start_s and end_s of the window, or slice_ms and 0 for a sliding window; quota, want,
--    min, spare, count_denied (0|1), stem; and the override. stem is the length of the key before the counter: the script reads the
--    override from <stem>override. If stem is 0, the override is the text after the numbers, and no
--    text means no override.
-- w: adjust a window: units, start_s, end_s. Negative units are a refund, others a charge.
-- s: adjust a slice of a sliding window: units, slice_ms, number of the slice
--
-- Replies {now_ms, ...} with four values for each key, in their order:
--          granted, used, quota in force, reset_ms
--          -1, 0, 0, 0: that window is not the current one, nothing was changed
--          -2, 0, 0, 0: the override cannot be read on this node now, nothing was changed
--          -3, adjusted units, 0, 0
--          an error, 0, 0, 0
--
-- Numbers are at most 2^53 - 1: exact in Lua, and never sent to Redis in exponent form.
local MOST = 9007199254740991
local GRACE_MS = 10000 -- a counter outlives its window by this much
local SLICES = 20
local RESERVE = '<dddddddd'
local RESERVE_BYTES = 65
local ADJUST = '<ddd'

local call, pcall, spread, unpack = redis.call, redis.pcall, unpack, struct.unpack
local floor, least, most = math.floor, math.min, math.max
local rep, sub, byte = string.rep, string.sub, string.byte

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

-- Deletes a counter: at 0 it means the same as none. A time to live of 0 needs no right to DEL.
local function delete(key)
  return fault_of(pcall('PEXPIRE', key, 0))
end

-- The slices in `value` that count at slice `now`, which `at` is one of: the number of the first
-- one, their units, and the sum. Slices after `now` were counted before the clock went back. If
-- they are too far ahead, nothing counts.
local function slices_of(value, now, at)
  local held, count, first, last = nil, 0, at, at
  if value then
    count = #value / 8
    if count < 2 or count > 2 * SLICES + 3 or count ~= floor(count) then
      return nil
    end
    held = {unpack('<' .. rep('d', count), value)}
    last = held[1] + count - 2
    if last >= now - SLICES and last <= now + SLICES then
      first, last = most(least(held[1], at), now - SLICES), most(last, at)
    else
      held, last = nil, at
    end
  end
  local units, used = {}, 0
  for i = 1, last - first + 1 do
    local slice = held and first + i - held[1] + 1
    local u = slice and slice >= 2 and slice <= count and held[slice] or 0
    if not (u >= 0) then
      u = 0
    end
    units[i] = u
    used = used + u
  end
  return first, units, least(used, MOST)
end

-- Writes slices, until the last of them has left.
local function write_slices(key, first, units, slice_ms)
  local ttl_ms = (first + #units + SLICES) * slice_ms - now_ms + GRACE_MS
  local value = struct.pack('<' .. rep('d', #units + 1), first, spread(units))
  return fault_of(pcall('SET', key, value, 'PX', ttl_ms))
end

-- Milliseconds until the first units return, or until `min` units fit in again. Until the current
-- slice leaves, if no slice before it helps.
local function returns(first, units, used, now, slice_ms, quota, min, full)
  for i = 1, #units do
    if units[i] > 0 then
      used = most(0, used - units[i])
      if full or used + min <= quota then
        return (first + i + SLICES) * slice_ms - now_ms
      end
    end
  end
  return (now + SLICES + 1) * slice_ms - now_ms
end

local function adjust_slice(key, operation)
  local delta, slice_ms, number = unpack(ADJUST, operation, 2)
  local now = floor(now_ms / slice_ms)
  if number < now - SLICES or number > now + SLICES then
    return -3, 0, 0, 0
  end
  local value = pcall('GET', key)
  if fault_of(value) then
    return value, 0, 0, 0
  end
  if not value and delta < 0 then
    return -3, 0, 0, 0
  end
  local first, units, used = slices_of(value, now, number)
  if not first then
    return redis.error_reply('ERR the counter holds no slices'), 0, 0, 0
  end
  local i = number - first + 1
  delta = least(most(delta, -units[i]), MOST - used)
  units[i] = units[i] + delta
  local fault
  if used + delta > 0 then
    fault = write_slices(key, first, units, slice_ms)
  elseif value then
    fault = delete(key)
  end
  if fault then
    return fault, 0, 0, 0
  end
  return -3, most(delta, -delta), 0, 0
end

local function adjust_window(key, operation)
  local delta, start_s, end_s = unpack(ADJUST, operation, 2)
  -- The window may be from a clock that was ahead, but not by more than the window.
  if now_s >= end_s or start_s > now_s + end_s - start_s then
    return -3, 0, 0, 0
  end
  local value = pcall('GET', key)
  if fault_of(value) then
    return value, 0, 0, 0
  end
  local used = value and used_of(value) or 0
  delta = least(most(delta, -used), MOST - used)
  local fault
  if delta < 0 and used + delta == 0 then
    fault = delete(key)
  elseif delta < 0 then
    fault = fault_of(pcall('DECRBY', key, -delta))
  elseif delta > 0 and value then
    fault = fault_of(pcall('INCRBY', key, delta))
  elseif delta > 0 then
    fault = fault_of(pcall('SET', key, delta, 'PX', end_s * 1000 - now_ms + GRACE_MS))
  end
  if fault then
    return fault, 0, 0, 0
  end
  return -3, most(delta, -delta), 0, 0
end

local function reserve(key, operation)
  local start_s, end_s, quota, want, min, spare, count_denied, stem = unpack(RESERVE, operation, 2)
  local sliding = end_s == 0
  if not sliding and (now_s < start_s or now_s >= end_s) then
    return -1, 0, 0, 0
  end

  local override
  if stem > 0 then
    override = pcall('GET', sub(key, 1, stem) .. 'override')
    if fault_of(override) then
      return -2, 0, 0, 0
    end
  else
    override = sub(operation, RESERVE_BYTES + 1)
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

  local value = pcall('GET', key)
  if fault_of(value) then
    return value, 0, 0, 0
  end
  local reset_ms = end_s * 1000 - now_ms
  local used, now, first, units = 0, nil, nil, nil
  if sliding then
    now = floor(now_ms / start_s)
    first, units, used = slices_of(value, now, now)
    if not first then
      return redis.error_reply('ERR the counter holds no slices'), 0, 0, 0
    end
  elseif value then
    used = used_of(value)
    if not used then
      return redis.error_reply('ERR the counter holds no number'), 0, 0, 0
    end
    local ttl = pcall('PTTL', key)
    if fault_of(ttl) then
      return ttl, 0, 0, 0
    end
    if ttl < 0 then
      pcall('PEXPIRE', key, reset_ms + GRACE_MS)
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
  local fault
  if sliding then
    units[now - first + 1] = units[now - first + 1] + taken
    if taken > 0 then
      fault = write_slices(key, first, units, start_s)
    end
    reset_ms = returns(first, units, used + taken, now, start_s, quota, min, needed == want)
  elseif taken > 0 and value then
    fault = fault_of(pcall('INCRBY', key, taken))
  elseif taken > 0 then
    fault = fault_of(pcall('SET', key, taken, 'PX', reset_ms + GRACE_MS))
  end
  if fault then
    return fault, 0, 0, 0
  end
  return granted, used + taken, quota, reset_ms
end

local OPERATIONS = {[byte('r')] = reserve, [byte('w')] = adjust_window, [byte('s')] = adjust_slice}

local replies = {now_ms}
for i = 1, #ARGV do
  local operation, at = ARGV[i], 4 * i - 2
  replies[at], replies[at + 1], replies[at + 2], replies[at + 3] = OPERATIONS[byte(operation)](KEYS[i], operation)
end
return replies
