-- Token bucket: "used at", the units in use at a time. Not GCRA's one number: a million per
-- second times Unix time would leave no room for units.

function read(rule)
  local value = redis.call('GET', rule.key)
  local gap = value and string.find(value, ' ', 1, true)
  if not gap then
    return {used = 0, at = now}
  end
  local used, at = tonumber(string.sub(value, 1, gap)) or 0, tonumber(string.sub(value, gap)) or now
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
  local value = string.format('%.17g %.0f', cell.used, cell.at)
  redis.call('SET', rule.key, value, 'PX', life(idle_after(rule, cell)))
end

function refund(rule, cell, cost)
  if cell.used > cost then
    charge(rule, cell, -cost)
  else
    redis.call('DEL', rule.key)
  end
end
