-- Sliding counter: of the window before counts the part that still overlaps the last span.

local function overlap(rule, cell)
  if cell.before == 0 then
    return 0
  end
  return cell.before * math.min(math.max(cell.left / rule.span, 0), 1)
end

function wait(rule, cell, cost)
  local left = rule.limit - cost - cell.used
  if overlap(rule, cell) <= left + rule.slack then
    return 0
  end
  if left >= 0 then
    return math.max(cell.left - left / cell.before * rule.span, rule.tick)
  end
  -- In the next window this one's use is the one that shrinks.
  local share = (rule.limit - cost) / cell.used
  return math.max(cell.left + (1 - share) * rule.span, rule.tick)
end

function in_use(rule, cell)
  return cell.used + overlap(rule, cell)
end

function idle_after(rule, cell)
  if cell.used > 0 then
    return cell.left + rule.span
  end
  return cell.before > 0 and cell.left or 0
end

function charge(rule, cell, cost)
  cell.used = cell.used + cost
  local value = string.format('%.0f %.17g %.17g', cell.number, cell.used, cell.before)
  redis.call('PSETEX', rule.key, life(cell.left + rule.span), value)
end

function refund(rule, cell, cost)
  local here = math.min(cost, cell.used)
  cell.before = math.max(cell.before - (cost - here), 0)
  charge(rule, cell, -here)
end
