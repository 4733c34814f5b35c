-- Counters of one server, each in one step.
--
-- KEYS[i] is <prefix>:<domain>:<policy>:{<partition>}:<counter>, and ARGV[i] the operation on it.
-- Further KEYS only declare the keys of overrides and quotas, for servers that demand it. The keys are
-- independent of each other: one that fails fails alone, so every command that may fail is called
-- by pcall. An error in place of all replies means that nothing was done for any key.
--
-- A fixed window or one of the calendar has a counter of its own, a whole number. A sliding window
-- has one for all slices: the number of the first slice, and the units of it and of each one after
-- it. Slots have a hash with one field for each worker, by its name: its serial, the slots that it
-- holds, when it expires in ms, the slots that its requests wait for, the slots that it asked for
-- last and did not get, and the limit if that is not the policy's, else -1. Four numbers of four bytes
-- follow: for how many ms the oldest of its requests had waited at that moment, for how many it had
-- held a slot, how many ms ago it was granted some, and the cost of the first that waits.
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
--          1 if refused units count, too, 2 if <key>:quota keeps the quota for operators, 4 if the
--          counter is kept after its window, and 8 to refund up to so many units as it wants. A
--          ninth number is the quota to keep, if it is another one than that in force.
-- thirteen: reserve slots: the eight of a reservation, with 0 as start_s and end_s and with the length
--          of the worker's name as spare; then its serial, the slots that it holds and that its
--          requests wait for, for how many ms they wait and it has held a slot at most; its name;
--          and then, as above, the override or the quota to keep.
--
-- Replies doubles of eight bytes in one text, which costs the caller far less than an array: now_ms,
-- then three numbers for each key, in their order:
--          granted, used, quota in force. A fourth one follows for a sliding window: reset_ms. For
--          slots three more: how long they are held in ms, or 0 if the field has this serial or a
--          later one, and nothing was changed; what other workers wait for; and how many slots of
--          deleted fields had expired
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
local SLOT_BYTES = 48 -- after a reservation, before the name

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

-- The function for slots, or the functions for sliding windows. Only the first such operation of a
-- call makes them, since that takes time.
local function functions_for(slots)
  if slots then
    local HOLDING_MS = 9000 -- as long as a worker holds slots without saying so again
    local CLAIM_MS = 1000 -- as long as its requests wait without saying so again
    local PATIENCE_MS = 250 -- a worker holds up another one only if it has waited this much longer
    local NEVER = 4294967295 -- the most of a number of four bytes
    local TTL_MS = 10000 -- more than HOLDING_MS
    local DROPPED = 100 -- most fields that a call deletes
    local WORKERS = 4096 -- most that hold slots of a counter
    local FIELD = '<ddddddI4I4I4I4'
    local FIELD_BYTES = 64

    return function(key, operation, worker, quota, want, min, own)
      local serial, held, waiting, waited_ms, max_wait_ms, longest_ms = read('<dddddd', operation, RESERVE_BYTES + 1)
      local fields = pcall('HGETALL', key)
      if fault_of(fields) then
        return fields, 0, 0
      end
      waited_ms, longest_ms = least(waited_ms, NEVER), least(longest_ms, NEVER)
      local ends_ms, since_ms = now_ms + HOLDING_MS, now_ms - waited_ms
      -- Requests that arrived before that wait no longer.
      local oldest_ms = max_wait_ms > 0 and now_ms - max_wait_ms or -1
      local others, ahead, asked, dropped, expired, workers, newest, had = 0, 0, 0, 0, 0, 1, nil, nil
      local granted_ms, claims = NEVER, nil
      for i = 1, #fields, 2 do
        local name, value = fields[i], fields[i + 1]
        local s, h, ends, w, missed, kept, waited, longest, ago, first
        if #value == FIELD_BYTES then
          s, h, ends, w, missed, kept, waited, longest, ago, first = read(FIELD, value)
        end
        if s and ends <= now_ms then
          if dropped < DROPPED then
            dropped = dropped + 1
            -- A serial of 0 stands for a field that nobody could read.
            if pcall('HDEL', key, name) == 1 and s > 0 and h > 0 and h <= MOST then
              expired = least(expired + floor(h), MOST)
            end
          end
        else
          local is_sound = s and h >= 0 and h <= MOST and w >= 0 and w <= MOST and missed >= 0 and missed <= MOST
          if not is_sound then
            -- Nobody knows what this worker holds: all of them, until it says so, or until it
            -- expires.
            s, h, ends, w, missed, kept, waited, longest, ago, first = 0, MOST, nil, 0, 0, -1, 0, 0, 0, 0
          end
          -- The clock went back, or something else wrote the field.
          if not (ends and ends <= ends_ms) then
            ends = ends_ms
            local fault = fault_of(pcall('HSET', key, name, write(FIELD, s, h, ends, w, missed, kept, waited, longest, ago, first)))
            if fault then
              return fault, 0, 0
            end
          end
          local at = ends - HOLDING_MS
          if name == worker then
            granted_ms = least(ago + most(0, now_ms - at), NEVER)
            if is_sound and s >= serial then
              newest, had = s, h
            end
          else
            others, workers = others + h, workers + 1
            if ends >= ends_ms - CLAIM_MS then
              asked = asked + most(w, missed)
              local since = at - waited
              -- Who waits for a lower limit holds up nobody with a higher one.
              if w > 0 and since > oldest_ms and kept >= own then
                claims = claims or {}
                claims[#claims + 1] = most(since, at - ago)
                claims[#claims + 1] = least(w, first)
              end
            end
          end
        end
      end
      asked = least(asked, MOST)
      if claims then
        -- A worker has waited in vain since its oldest request waits, or since it was last granted
        -- slots after that. If that is longer than for this worker, the slots of its first request
        -- are left for it. One number of each worker decides, so no two wait for each other.
        local in_vain_since_ms = most(since_ms, now_ms - granted_ms)
        local patience_ms = max_wait_ms > 0 and least(PATIENCE_MS, floor(max_wait_ms / 3)) or PATIENCE_MS
        for i = 1, #claims, 2 do
          if claims[i] + patience_ms < in_vain_since_ms then
            ahead = ahead + claims[i + 1]
          end
        end
      end
      if newest then
        return 0, least(others + had, MOST), quota, 0, asked, expired
      end

      if workers > WORKERS then
        return redis.error_reply('ERR too many workers hold slots of the counter'), 0, 0
      end
      local free = floor(most(0, quota - others - held - ahead))
      local granted = free >= min and least(want, free) or 0
      -- Requests that never fit hold up nobody.
      local left = min <= quota and most(0, waiting - granted) or 0
      granted_ms = granted > 0 and 0 or granted_ms
      local field = write(FIELD, serial, held + granted, ends_ms, left, want - granted, own, waited_ms, longest_ms, granted_ms, least(min, NEVER))
      local fault = fault_of(pcall('HSET', key, worker, field)) or fault_of(pcall('PEXPIRE', key, TTL_MS))
      if fault then
        return fault, 0, 0
      end
      return granted, least(others + held + granted, MOST), quota, HOLDING_MS, asked, expired
    end
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

-- Refunds units of a counter that has used so many. Returns its fault, if any. A counter at 0 means
-- the same as none, and a time to live of 0 needs no right to DEL.
local function refund(key, used, units)
  if units == used then
    return fault_of(pcall('PEXPIRE', key, 0))
  end
  return fault_of(pcall('DECRBY', key, units))
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
  if delta < 0 then
    fault = refund(key, used, -delta)
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

-- Returns nothing if it needs the functions for sliding windows and `sliding` has none, and nil and
-- true if it needs the function for slots.
local function reserve(key, operation, sliding, slots)
  local start_s, end_s, quota, want, min, spare, flags, stem = read(RESERVE, operation)
  local slides, bytes = end_s == 0, RESERVE_BYTES
  if slides then
    if start_s == 0 then
      if not slots then
        return nil, true
      end
      bytes = bytes + SLOT_BYTES + spare
    elseif not sliding then
      return
    end
  elseif now_s < start_s or now_s >= end_s then
    return -1, 0, 0
  end

  local own, override = quota, nil
  if stem > 0 then
    if #operation > bytes then
      own = read('<d', operation, bytes + 1)
    end
    override = pcall('GET', string.sub(key, 1, stem) .. 'override')
    if fault_of(override) then
      return -2, 0, 0
    end
  else
    override = string.sub(operation, bytes + 1)
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
  if slides and start_s == 0 then
    local worker = string.sub(operation, RESERVE_BYTES + SLOT_BYTES + 1, bytes)
    return slots(key, operation, worker, quota, want, min, flags > 1 and own or -1)
  end

  local value = pcall('GET', key)
  if fault_of(value) then
    return value, 0, 0
  end
  if flags > 7 then
    local held = value and used_of(value)
    if value and not held then
      return redis.error_reply('ERR the counter holds no number'), 0, 0
    end
    local units = least(want, held or 0)
    local failed = units > 0 and refund(key, held, units)
    if failed then
      return failed, 0, 0
    end
    return units, (held or 0) - units, quota
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

local replies, faults, at, sliding, slots = {now_ms}, nil, 2, nil, nil
for i = 1, #ARGV do
  local key, operation = KEYS[i], ARGV[i]
  local bytes = #operation
  local first, second, third, fourth, fifth, sixth
  if bytes == WINDOW_BYTES or bytes == WINDOW_BYTES + 1 then
    first, second, third = adjust_window(key, operation)
  elseif bytes == SLICE_BYTES then
    sliding = sliding or functions_for(false)
    first, second, third = sliding.adjust(key, operation)
  else
    first, second, third, fourth, fifth, sixth = reserve(key, operation, sliding, slots)
    if not first then
      if second then
        slots = functions_for(true)
      else
        sliding = functions_for(false)
      end
      first, second, third, fourth, fifth, sixth = reserve(key, operation, sliding, slots)
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
    if fifth then
      replies[at], replies[at + 1] = fifth, sixth
      at = at + 2
    end
  end
end
local numbers = write('<' .. rep('d', at - 1), spread(replies))
if faults then
  faults[1] = numbers
  return faults
end
return numbers
