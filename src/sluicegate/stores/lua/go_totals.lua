-- The layout of go-cluster-limiter: the totals are two strings that all nodes add to. A periodic
-- limiter has one pair for all time, so a counter's record has what they were when its period began,
-- and what was told late of earlier ones. One that happens once began at 0.
-- The record ends with what the totals were at its last change: SEEN. A total that is lower now was
-- deleted or set back. It begins anew, and the period keeps what it had.
local SEEN = '<dd'  -- sum, count; absent in records of earlier versions

local sum_key, count_key, all_sum, all_count, is_absent

-- The number that a total is, or an error: a command that adds to it must not fail after others.
local function read_total(name, text, pattern, most)
  if not text and redis.call('TYPE', name).ok == 'none' then
    return 0
  end
  local value = text and string.find(text, pattern) and tonumber(text)
  if not value or math.abs(value) > most then
    error('the total in ' .. name .. ' is not a number that can be added to', 0)
  end
  return value
end

local function load_totals(key, stored_sum, stored_count, seen, is_new, is_periodic)
  local name = string.match(key, '^(.*):sluicegate:')
  sum_key, count_key = name .. ':sum', name .. ':cnt'
  local found = redis.call('MGET', sum_key, count_key)
  all_sum = read_total(sum_key, found[1], '^[%d.eE+-]+$', 1e300)
  all_count = read_total(count_key, found[2], '^-?%d+$', 2 ^ 53)
  is_absent = is_new or not found[1] or not found[2]
  if is_new and is_periodic then
    return 0, 0, stored_sum, stored_count
  end
  local seen_sum, seen_count = stored_sum, stored_count
  if seen ~= '' then
    seen_sum, seen_count = struct.unpack(SEEN, seen)
  end
  stored_sum = stored_sum - math.max(seen_sum - all_sum, 0)
  stored_count = stored_count - math.max(seen_count - all_count, 0)
  return all_sum - stored_sum, all_count - stored_count, stored_sum, stored_count
end

-- Add what a writer has told, and return what the record must have. `is_first`: in this period.
local function save_totals(stored_sum, stored_count, _, _, new_sum, new_count, is_first, is_late,
                           expire_at)
  if is_first then
    stored_sum, stored_count = all_sum, all_count
  elseif is_late then
    stored_sum, stored_count = stored_sum + new_sum, stored_count + new_count
  end
  local expires = expire_at > 0 and is_absent
  if new_count ~= 0 or expires then
    all_count = tonumber(redis.call('INCRBY', count_key, string.format('%.0f', new_count)))
  end
  if new_sum ~= 0 or expires then
    all_sum = tonumber(redis.call('INCRBYFLOAT', sum_key, string.format('%.17g', new_sum)))
  end
  if expires then
    redis.call('EXPIREAT', count_key, expire_at)
    redis.call('EXPIREAT', sum_key, expire_at)
  end
  return stored_sum, stored_count
end

local function pack_seen()
  return struct.pack(SEEN, all_sum, all_count)
end
