-- Token bucket: two doubles, the units in use and the time of that. Not GCRA's one number: a
-- million per second times Unix time would leave no room for units.

function read(rule)
  local value = redis.call('GET', rule.key)
  local used, at = 0, now
  if value and #value == 16 then
    used, at = struct.unpack('<dd', value)
  end
  if at < now then
    used, at = math.max(used - (now - at) * rule.rate, 0), now
  end
  return {used = used, at = at}
end

function wait(rule, cell, cost)
  local missing = cell.used + (cost - rule.limit)
  if missing <= rule.slack then
    return 0
  end
  return missing / rule.rate + (cell.at - now)
end

function in_use(rule, cell)
  return cell.used
end

function idle_after(rule, cell)
  return cell.used > 0 and cell.used / rule.rate + (cell.at - now) or 0
end

function charge(rule, cell, cost)
  cell.used = cell.used + cost
  local value = struct.pack('<dd', cell.used, cell.at)
  redis.call('PSETEX', rule.key, life(idle_after(rule, cell)), value)
end

function refund(rule, cell, cost)
  if cell.used > cost then
    charge(rule, cell, -cost)
  else
    redis.call('DEL', rule.key)
  end
end
