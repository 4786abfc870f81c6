-- The layout of go-cluster-limiter: the totals are two strings that all nodes add to. A periodic
-- limiter has one pair for all time, so a counter's record has what they were when its period began,
-- and what was told late of earlier ones. One that happens once began at 0.
local sum_key, count_key, all_sum, all_count

local function load_totals(key, stored_sum, stored_count, is_new, is_periodic)
  local name = string.match(key, '^(.*):sluicegate:')
  sum_key, count_key = name .. ':sum', name .. ':cnt'
  local found = redis.call('MGET', sum_key, count_key)
  all_sum, all_count = tonumber(found[1] or 0), tonumber(found[2] or 0)
  if is_new and is_periodic then
    return 0, 0
  end
  return all_sum - stored_sum, all_count - stored_count
end

-- Add what a writer has told, and return what the record must have. `is_first`: in this period.
local function save_totals(stored_sum, stored_count, _, _, new_sum, new_count, is_first, is_late,
                           expire_at)
  if is_first then
    stored_sum, stored_count = all_sum, all_count
  elseif is_late then
    stored_sum, stored_count = stored_sum + new_sum, stored_count + new_count
  end
  if new_count ~= 0 or expire_at > 0 then
    redis.call('INCRBY', count_key, string.format('%.0f', new_count))
  end
  if new_sum ~= 0 or expire_at > 0 then
    redis.call('INCRBYFLOAT', sum_key, string.format('%.17g', new_sum))
  end
  if expire_at > 0 then
    redis.call('EXPIREAT', count_key, expire_at)
    redis.call('EXPIREAT', sum_key, expire_at)
  end
  return stored_sum, stored_count
end
