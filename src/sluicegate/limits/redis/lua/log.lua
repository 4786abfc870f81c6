-- Exact log: a sorted set of time -> "before:total", the running totals before and after.

local function entry(rule, rank)
  local found = redis.call('ZRANGE', rule.key, rank, rank, 'WITHSCORES')
  if not found[1] then
    return nil
  end
  local before, total = string.match(found[1], '^(%d+):(%d+)$')
  return {text = found[1], before = tonumber(before), total = tonumber(total), at = tonumber(found[2])}
end

-- `first` is the rank of the oldest entry that counts; a look leaves the others where they are.
function read(rule)
  local newest = entry(rule, -1)
  if not newest then
    return {at = now, first = 0, count = 0, expired = 0, total = 0}
  end
  local at = math.max(now, newest.at)
  local last = string.format('%.17g', at + rule.tick - rule.span)
  local first = redis.call('ZCOUNT', rule.key, '-inf', last)
  local oldest = entry(rule, first)
  if not oldest then
    return {at = at, first = first, count = 0, expired = 0, total = 0}
  end
  return {
    at = at,
    first = first,
    count = redis.call('ZCARD', rule.key) - first,
    expired = oldest.before,
    total = newest.total,
    newest = newest,
  }
end

function wait(rule, cell, cost)
  local must_expire = cell.total + cost - rule.limit
  if must_expire <= cell.expired then
    return 0
  end
  local low, high = cell.first, cell.first + cell.count - 1
  while low < high do
    local middle = math.floor((low + high) / 2)
    if entry(rule, middle).total >= must_expire then
      high = middle
    else
      low = middle + 1
    end
  end
  return math.max(entry(rule, low).at + rule.span - now, rule.tick)
end

function in_use(rule, cell)
  return cell.total - cell.expired
end

function idle_after(rule, cell)
  return cell.newest and math.max(cell.newest.at + rule.span - now, 0) or 0
end

local function drop_expired(rule, cell)
  if cell.first > 0 then
    redis.call('ZREMRANGEBYRANK', rule.key, 0, cell.first - 1)
    cell.first = 0
  end
end

local function add(rule, at, before, total)
  local text = string.format('%.0f:%.0f', before, total)
  redis.call('ZADD', rule.key, string.format('%.0f', at), text)
  return {text = text, before = before, total = total, at = at}
end

function charge(rule, cell, cost)
  drop_expired(rule, cell)
  local before = cell.total
  -- No two entries have one time, for then they would be in the order of their text.
  if cell.newest and cell.newest.at == cell.at then
    before = cell.newest.before
    redis.call('ZREM', rule.key, cell.newest.text)
    cell.count = cell.count - 1
  end
  cell.newest = add(rule, cell.at, before, cell.total + cost)
  cell.total = cell.total + cost
  cell.count = cell.count + 1
  redis.call('PEXPIRE', rule.key, life(idle_after(rule, cell)))
end

-- From the oldest entries: so nothing that was taken later expires any earlier for it.
function refund(rule, cell, cost)
  drop_expired(rule, cell)
  local expired = math.min(cell.expired + cost, cell.total)
  local low, high = 0, cell.count
  while low < high do
    local middle = math.floor((low + high) / 2)
    if entry(rule, middle).total <= expired then
      low = middle + 1
    else
      high = middle
    end
  end
  if low > 0 then
    redis.call('ZREMRANGEBYRANK', rule.key, 0, low - 1)
  end
  local oldest = entry(rule, 0)
  if oldest and oldest.before < expired then
    -- First the new one: a set that was empty in between would have lost its time to live.
    add(rule, oldest.at, expired, oldest.total)
    redis.call('ZREM', rule.key, oldest.text)
  end
end
