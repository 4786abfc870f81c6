-- Fixed window, aligned to Unix time.

function wait(rule, cell, cost)
  if cell.used + cost <= rule.limit + rule.slack then
    return 0
  end
  return math.max(cell.left, rule.tick)
end

function in_use(rule, cell)
  return cell.used
end

function idle_after(rule, cell)
  return cell.used > 0 and cell.left or 0
end

function charge(rule, cell, cost)
  cell.used = cell.used + cost
  local value = string.format('%.0f %.17g', cell.number, cell.used)
  redis.call('PSETEX', rule.key, life(cell.left), value)
end

function refund(rule, cell, cost)
  charge(rule, cell, -math.min(cost, cell.used))
end
