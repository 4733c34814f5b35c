-- Counters of one server, each in one step.
--
-- KEYS[i] is <prefix>:<domain>:<policy>:{<partition>}:<counter>, and ARGV[i] the operation on it.
-- Further KEYS only declare the keys of overrides and quotas, for servers that demand it. The keys are
-- independent of each other: one that fails fails alone, so every command that may fail is called
-- by pcall. An error in place of all replies means that nothing was done for any key.
--
-- A fixed window or one of the calendar has a counter of its own, a whole number. A sliding window
-- has one for all slices: the number of the first slice, and the units of it and of each one after
-- it.
--
-- A number in ARGV[i] is a double of eight bytes, little-endian: exact up to 2^53 - 1, and far
-- cheaper to read than text. So are the numbers of a sliding window.
-- three numbers: adjust a window: units, start_s, end_s. Negative units are a refund, others a
--          charge. A further byte says that the counter is kept after its window.
-- four:    adjust a slice of a sliding window: units, slice_ms, number of the slice, 0
-- eight:   reserve: start_s and end_s of the window, or slice_ms and 0 for a sliding window; quota,
--          want, min, spare, flags, stem; and the override. stem is the length of the key before
--          the counter: the script reads the override from <stem>override. If stem is 0, the
--          override is the text after the numbers, and no text means no override. Flags are a sum:
--          1 if refused units count, too, 2 if <key>:quota keeps the quota for operators, and 4 if
--          the counter is kept after its window. A ninth number is the quota to keep, if it is
--          another one than that in force.
--
-- Replies doubles of eight bytes in one text, which costs the caller far less than an array: now_ms,
-- then three numbers for each key, in their order:
--          granted, used, quota in force. A fourth one follows for a sliding window: reset_ms
--          -1, 0, 0: that window is not the current one, nothing was changed
--          -2, 0, 0: the override cannot be read on this node now, nothing was changed
--          -3, adjusted units, 0
--          -4, 0, 0: it failed
-- If any failed, it replies an array: that text, and for each key its error, or nil.
--
-- Every local of the script that a function uses costs time in each call, and so does making a
-- function.
-- Numbers are at most 2^53 - 1: exact in Lua, and never sent to Redis in exponent form.
local MOST = 9007199254740991
local GRACE_MS = 10000 -- a counter outlives its window by this much
local KEPT_S = 604800 -- and where it is kept, by a further window of at most so many seconds
local SLICES = 20 -- of a sliding window, before the current one
local RESERVE = '<dddddddd'
local RESERVE_BYTES = 64
local ADJUST = '<ddd'
local WINDOW_BYTES = 24
local SLICE_BYTES = 32

local call, pcall, read, write = redis.call, redis.pcall, struct.unpack, struct.pack
local rep, spread = string.rep, unpack or table.unpack
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

-- How long a counter lives that is kept after its window.
local function kept_ms(start_s, end_s)
  return (end_s + least(end_s - start_s, KEPT_S)) * 1000 - now_ms + GRACE_MS
end

-- The error of a command that failed.
local function fault_of(reply)
  return type(reply) == 'table' and reply.err and reply
end

-- The functions for sliding windows. Only the first sliding window of a call makes them, since that
-- takes time.
local function sliding_functions()
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
      held = {read('<' .. rep('d', count), value)}
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
    local value = write('<' .. rep('d', #units + 1), first, spread(units))
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
    local delta, slice_ms, number = read(ADJUST, operation)
    local now = floor(now_ms / slice_ms)
    if number < now - SLICES or number > now + SLICES then
      return -3, 0, 0
    end
    local value = pcall('GET', key)
    if fault_of(value) then
      return value, 0, 0
    end
    if not value and delta < 0 then
      return -3, 0, 0
    end
    local first, units, used = slices_of(value, now, number)
    if not first then
      return redis.error_reply('ERR the counter holds no slices'), 0, 0
    end
    local i = number - first + 1
    delta = least(most(delta, -units[i]), MOST - used)
    units[i] = units[i] + delta
    local fault
    if used + delta > 0 then
      fault = write_slices(key, first, units, slice_ms)
    elseif value then
      fault = fault_of(pcall('PEXPIRE', key, 0))
    end
    if fault then
      return fault, 0, 0
    end
    return -3, most(delta, -delta), 0
  end

  return {slices_of = slices_of, write = write_slices, returns = returns, adjust = adjust_slice}
end

local function adjust_window(key, operation)
  local delta, start_s, end_s = read(ADJUST, operation)
  -- The window may be from a clock that was ahead, but not by more than the window.
  if now_s >= end_s or start_s > now_s + end_s - start_s then
    return -3, 0, 0
  end
  local value = pcall('GET', key)
  if fault_of(value) then
    return value, 0, 0
  end
  local used = value and used_of(value) or 0
  delta = least(most(delta, -used), MOST - used)
  local fault
  if delta < 0 and used + delta == 0 then
    -- A counter at 0 means the same as none. A time to live of 0 needs no right to DEL.
    fault = fault_of(pcall('PEXPIRE', key, 0))
  elseif delta < 0 then
    fault = fault_of(pcall('DECRBY', key, -delta))
  elseif delta > 0 and value then
    fault = fault_of(pcall('INCRBY', key, delta))
  elseif delta > 0 then
    local is_kept = #operation > WINDOW_BYTES
    local ttl_ms = is_kept and kept_ms(start_s, end_s) or end_s * 1000 - now_ms + GRACE_MS
    fault = fault_of(pcall('SET', key, delta, 'PX', ttl_ms))
  end
  if fault then
    return fault, 0, 0
  end
  return -3, most(delta, -delta), 0
end

-- Returns nothing if it needs the functions for sliding windows and `sliding` has none.
local function reserve(key, operation, sliding)
  local start_s, end_s, quota, want, min, spare, flags, stem = read(RESERVE, operation)
  local slides = end_s == 0
  if slides then
    if not sliding then
      return
    end
  elseif now_s < start_s or now_s >= end_s then
    return -1, 0, 0
  end

  local own, override = quota, nil
  if stem > 0 then
    if #operation > RESERVE_BYTES then
      own = read('<d', operation, RESERVE_BYTES + 1)
    end
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

  local value = pcall('GET', key)
  if fault_of(value) then
    return value, 0, 0
  end
  local ttl_ms = end_s * 1000 - now_ms + GRACE_MS
  if flags > 3 then
    flags, ttl_ms = flags - 4, kept_ms(start_s, end_s)
  end
  local reset_ms
  local used, now, first, units = 0, nil, nil, nil
  if slides then
    now = floor(now_ms / start_s)
    first, units, used = sliding.slices_of(value, now, now)
    if not first then
      return redis.error_reply('ERR the counter holds no slices'), 0, 0
    end
  elseif value then
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
  if flags % 2 == 1 then
    -- In this order each step is exact: if units are refused, none are spare.
    taken = taken + (want - needed)
  end
  taken = least(taken, MOST - used)
  if flags > 1 and (value or taken > 0) then
    -- The quota lives as long as the counter: it is written with the first units of a window or a
    -- slice. Whether that works decides nothing.
    local name, is_first, own_ttl_ms = key .. ':quota', not value, ttl_ms
    if slides then
      is_first = taken > 0 and units[now - first + 1] == 0
      own_ttl_ms = (now + SLICES + 1) * start_s - now_ms + GRACE_MS
    end
    if is_first or tonumber(pcall('GET', name)) ~= own then
      pcall('SET', name, own, 'PX', own_ttl_ms)
    end
  end
  local fault
  if slides then
    units[now - first + 1] = units[now - first + 1] + taken
    if taken > 0 then
      fault = sliding.write(key, first, units, start_s)
    end
    reset_ms = sliding.returns(first, units, used + taken, now, start_s, quota, min, needed == want)
  elseif taken > 0 and value then
    fault = fault_of(pcall('INCRBY', key, taken))
  elseif taken > 0 then
    fault = fault_of(pcall('SET', key, taken, 'PX', ttl_ms))
  end
  if fault then
    return fault, 0, 0
  end
  return granted, used + taken, quota, reset_ms
end

local replies, faults, at, sliding = {now_ms}, nil, 2, nil
for i = 1, #ARGV do
  local key, operation = KEYS[i], ARGV[i]
  local bytes = #operation
  local first, second, third, fourth
  if bytes == WINDOW_BYTES or bytes == WINDOW_BYTES + 1 then
    first, second, third = adjust_window(key, operation)
  elseif bytes == SLICE_BYTES then
    sliding = sliding or sliding_functions()
    first, second, third = sliding.adjust(key, operation)
  else
    first, second, third, fourth = reserve(key, operation, sliding)
    if not first then
      sliding = sliding_functions()
      first, second, third, fourth = reserve(key, operation, sliding)
    end
  end
  if fault_of(first) then
    if not faults then
      faults = {}
      for j = 1, #ARGV + 1 do
        faults[j] = false
      end
    end
    faults[i + 1], first = first, -4
  end
  replies[at], replies[at + 1], replies[at + 2] = first, second, third
  at = at + 3
  if fourth then
    replies[at] = fourth
    at = at + 1
  end
end
local numbers = write('<' .. rep('d', at - 1), spread(replies))
if faults then
  faults[1] = numbers
  return faults
end
return numbers
