-- One decision about one key, on the server's own time. The algorithms are those of
-- `_cells.pxd`; only the way of writing a cell down differs.
--
-- KEYS  one per limit (for `announce`: the set of the nodes).
-- ARGV  verb, algorithm, time or "", then for each limit: limit, rate, span, slack, tick,
--       then cost (for `lease`: what is needed, what is wanted).
--
-- Times are in microseconds of Unix time, the rate in units per microsecond: whole numbers
-- below 2^53, so that doubles have them exactly. A time is given in tests alone.
--
--   bucket   "used at"              units in use at a time. Not GCRA's one number: a million
--                                   per second times Unix time would leave no room for units
--   fixed    "number used"          of the window, counted since 1970, and what was used in it
--   counter  "number used before"   and what was used in the window before
--   log      a sorted set           time -> "before:total", running totals before and after
--
-- Each key lives until it has nothing in use: an absent key and an idle one are the same.
-- A clock that goes back (a failover) mints nothing: a cell stands still until the time has
-- caught up, or the key has expired.

local verb = ARGV[1]
local now = tonumber(ARGV[3])
if not now then
  local time = redis.call('TIME')
  now = tonumber(time[1]) * 1000000 + tonumber(time[2])
end

if verb == 'announce' then
  local life = tonumber(ARGV[4])
  redis.call('ZADD', KEYS[1], string.format('%.0f', now + life), ARGV[2])
  redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', string.format('%.0f', now))
  redis.call('PEXPIRE', KEYS[1], string.format('%.0f', life / 1000))
  return redis.call('ZCARD', KEYS[1])
end

local LONGEST = 1e15 -- milliseconds that a key may be told to live

local function write(key, value, microseconds)
  local life = math.min(math.ceil(microseconds / 1000) + 1, LONGEST)
  redis.call('SET', key, value, 'PX', string.format('%.0f', life))
end

-- Each algorithm: read(rule) gives a cell; wait(rule, cell, cost), used(rule, cell) and
-- idle_after(rule, cell) look at it; charge and refund change it and write it down.

local bucket = {}

function bucket.read(rule)
  local value = redis.call('GET', rule.key)
  local used, at = string.match(value or '', '^(%S+) (%S+)$')
  used, at = tonumber(used) or 0, tonumber(at) or now
  if at < now then
    used, at = math.max(used - (now - at) * rule.rate, 0), now
  end
  return {used = used, at = at}
end

function bucket.wait(rule, cell, cost)
  local missing = cell.used + (cost - rule.limit)
  if missing <= rule.slack then
    return 0
  end
  return missing / rule.rate + (cell.at - now)
end

function bucket.used(rule, cell)
  return cell.used
end

function bucket.idle_after(rule, cell)
  return cell.used > 0 and cell.used / rule.rate + (cell.at - now) or 0
end

function bucket.charge(rule, cell, cost)
  cell.used = cell.used + cost
  local value = string.format('%.17g %.0f', cell.used, cell.at)
  write(rule.key, value, bucket.idle_after(rule, cell))
end

function bucket.refund(rule, cell, cost)
  if cell.used > cost then
    bucket.charge(rule, cell, -cost)
  else
    redis.call('DEL', rule.key)
  end
end

local fixed = {}

function fixed.read(rule)
  local value = redis.call('GET', rule.key)
  local number, used, before = string.match(value or '', '^(%S+) (%S+) ?(%S*)$')
  number, used, before = tonumber(number), tonumber(used) or 0, tonumber(before) or 0
  local current = math.floor((now + rule.tick) / rule.span)
  if not number or number < current then
    before = number == current - 1 and used or 0
    number, used = current, 0
  end
  return {number = number, here = used, before = before, left = (number + 1) * rule.span - now}
end

function fixed.wait(rule, cell, cost)
  if cell.here + cost <= rule.limit + rule.slack then
    return 0
  end
  return math.max(cell.left, rule.tick)
end

function fixed.used(rule, cell)
  return cell.here
end

function fixed.idle_after(rule, cell)
  return cell.here > 0 and cell.left or 0
end

function fixed.charge(rule, cell, cost)
  cell.here = cell.here + cost
  write(rule.key, string.format('%.0f %.17g', cell.number, cell.here), cell.left)
end

function fixed.refund(rule, cell, cost)
  fixed.charge(rule, cell, -math.min(cost, cell.here))
end

local counter = {read = fixed.read}

function counter.overlap(rule, cell)
  if cell.before == 0 then
    return 0
  end
  return cell.before * math.min(math.max(cell.left / rule.span, 0), 1)
end

function counter.wait(rule, cell, cost)
  local left = rule.limit - cost - cell.here
  if counter.overlap(rule, cell) <= left + rule.slack then
    return 0
  end
  if left >= 0 then
    return math.max(cell.left - left / cell.before * rule.span, rule.tick)
  end
  -- In the next window this one's use is the one that shrinks.
  local overlap = (rule.limit - cost) / cell.here
  return math.max(cell.left + (1 - overlap) * rule.span, rule.tick)
end

function counter.used(rule, cell)
  return cell.here + counter.overlap(rule, cell)
end

function counter.idle_after(rule, cell)
  if cell.here > 0 then
    return cell.left + rule.span
  end
  return cell.before > 0 and cell.left or 0
end

function counter.charge(rule, cell, cost)
  cell.here = cell.here + cost
  local value = string.format('%.0f %.17g %.17g', cell.number, cell.here, cell.before)
  write(rule.key, value, cell.left + rule.span)
end

function counter.refund(rule, cell, cost)
  local here = math.min(cost, cell.here)
  cell.before = math.max(cell.before - (cost - here), 0)
  counter.charge(rule, cell, -here)
end

local log = {}

local function entry(rule, rank)
  local found = redis.call('ZRANGE', rule.key, rank, rank, 'WITHSCORES')
  if not found[1] then
    return nil
  end
  local before, total = string.match(found[1], '^(%d+):(%d+)$')
  return {text = found[1], before = tonumber(before), total = tonumber(total), at = tonumber(found[2])}
end

-- `first` is the rank of the oldest entry that counts; a look leaves the others where they are.
function log.read(rule)
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

function log.wait(rule, cell, cost)
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

function log.used(rule, cell)
  return cell.total - cell.expired
end

function log.idle_after(rule, cell)
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

function log.charge(rule, cell, cost)
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
  redis.call('PEXPIRE', rule.key, string.format('%.0f',
    math.min(math.ceil(log.idle_after(rule, cell) / 1000) + 1, LONGEST)))
end

-- From the oldest entries: so nothing that was taken later expires any earlier for it.
function log.refund(rule, cell, cost)
  drop_expired(rule, cell)
  local expired = math.min(cell.expired + cost, cell.total)
  local oldest = entry(rule, 0)
  while oldest and oldest.total <= expired do
    redis.call('ZREM', rule.key, oldest.text)
    oldest = entry(rule, 0)
  end
  if oldest and oldest.before < expired then
    redis.call('ZREM', rule.key, oldest.text)
    add(rule, oldest.at, expired, oldest.total)
  end
end

local algorithm = ({bucket = bucket, fixed = fixed, counter = counter, log = log})[ARGV[2]]
local rules, cells = {}, {}
for i = 1, #KEYS do
  local at = 5 * i - 1
  local rule = {
    key = KEYS[i],
    limit = tonumber(ARGV[at]),
    rate = tonumber(ARGV[at + 1]),
    span = tonumber(ARGV[at + 2]),
    slack = tonumber(ARGV[at + 3]),
    tick = tonumber(ARGV[at + 4]),
  }
  rules[i], cells[i] = rule, algorithm.read(rule)
end
local cost = tonumber(ARGV[5 * #KEYS + 4])

if verb == 'refund' then
  for i, rule in ipairs(rules) do
    if algorithm.used(rule, cells[i]) > 0 then
      algorithm.refund(rule, cells[i], cost)
    end
  end
  return 1
end

local wait, waits = 0, {}
for i, rule in ipairs(rules) do
  waits[i] = algorithm.wait(rule, cells[i], cost)
  wait = math.max(wait, waits[i])
end

local taken = cost
if verb == 'lease' then
  local room = tonumber(ARGV[5 * #KEYS + 5])
  for i, rule in ipairs(rules) do
    room = math.min(room, rule.limit - algorithm.used(rule, cells[i]))
  end
  taken = cost + math.max(math.floor(room - cost), 0)
end
if wait == 0 and taken > 0 then
  for i, rule in ipairs(rules) do
    algorithm.charge(rule, cells[i], taken)
  end
end
if verb == 'allow' then
  return wait == 0 and 1 or 0
end

-- The limit that makes one wait the longest, or else has the least left.
local index, least, reset_after = 1, math.huge, 0
for i, rule in ipairs(rules) do
  local left = math.max(rule.limit - algorithm.used(rule, cells[i]), 0)
  if i == 1 or waits[i] > waits[index] or (waits[i] == waits[index] and left < least) then
    index, least = i, left
    reset_after = algorithm.idle_after(rule, cells[i])
  end
end
if verb == 'lease' then
  local paid_after = math.huge
  for i, rule in ipairs(rules) do
    paid_after = math.min(paid_after, algorithm.idle_after(rule, cells[i]))
  end
  least, reset_after = wait == 0 and taken or 0, paid_after
end
return string.format('%d %d %.17g %.17g %.17g',
  wait == 0 and 1 or 0, index - 1, least, wait, math.max(reset_after, wait))
