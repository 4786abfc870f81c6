-- Exact log: a sorted set of time -> "before:total", the running totals before and after.

local function entry(params, rank)
  local found = redis.call('ZRANGE', params.key, rank, rank, 'WITHSCORES')
  if not found[1] then
    return nil
  end
  local before, total = string.match(found[1], '^(%d+):(%d+)$')
  return {text = found[1], before = tonumber(before), total = tonumber(total), at = tonumber(found[2])}
end

-- `first` is the rank of the oldest entry that counts; a look leaves the others where they are.
function read(params)
  local newest = entry(params, -1)
  if not newest then
    return {at = now, first = 0, count = 0, expired = 0, total = 0}
  end
  local at = math.max(now, newest.at)
  local last = string.format('%.17g', at + params.clock_epsilon - params.span)
  local first = redis.call('ZCOUNT', params.key, '-inf', last)
  local oldest = entry(params, first)
  if not oldest then
    return {at = at, first = first, count = 0, expired = 0, total = 0}
  end
  return {
    at = at,
    first = first,
    count = redis.call('ZCARD', params.key) - first,
    expired = oldest.before,
    total = newest.total,
    newest = newest,
  }
end

function wait(params, state, cost)
  local must_expire = state.total + cost - params.limit
  if must_expire <= state.expired then
    return 0
  end
  local low, high = state.first, state.first + state.count - 1
  while low < high do
    local middle = math.floor((low + high) / 2)
    if entry(params, middle).total >= must_expire then
      high = middle
    else
      low = middle + 1
    end
  end
  return math.max(entry(params, low).at + params.span - now, params.clock_epsilon)
end

function in_use(params, state)
  return state.total - state.expired
end

function idle_after(params, state)
  return state.newest and math.max(state.newest.at + params.span - now, 0) or 0
end

local function drop_expired(params, state)
  if state.first > 0 then
    redis.call('ZREMRANGEBYRANK', params.key, 0, state.first - 1)
    state.first = 0
  end
end

local function add(params, at, before, total)
  local text = string.format('%.0f:%.0f', before, total)
  redis.call('ZADD', params.key, string.format('%.0f', at), text)
  return {text = text, before = before, total = total, at = at}
end

function charge(params, state, cost)
  drop_expired(params, state)
  local before = state.total
  -- No two entries have one time, for then they would be in the order of their text.
  if state.newest and state.newest.at == state.at then
    before = state.newest.before
    redis.call('ZREM', params.key, state.newest.text)
    state.count = state.count - 1
  end
  state.newest = add(params, state.at, before, state.total + cost)
  state.total = state.total + cost
  state.count = state.count + 1
  redis.call('PEXPIRE', params.key, ttl(idle_after(params, state)))
end

-- From the oldest entries: so nothing that was taken later expires any earlier for it.
function refund(params, state, cost)
  drop_expired(params, state)
  local expired = math.min(state.expired + cost, state.total)
  local low, high = 0, state.count
  while low < high do
    local middle = math.floor((low + high) / 2)
    if entry(params, middle).total <= expired then
      low = middle + 1
    else
      high = middle
    end
  end
  if low > 0 then
    redis.call('ZREMRANGEBYRANK', params.key, 0, low - 1)
  end
  local oldest = entry(params, 0)
  if oldest and oldest.before < expired then
    -- First the new one: a set that was empty in between would have lost its time to live.
    add(params, oldest.at, expired, oldest.total)
    redis.call('ZREM', params.key, oldest.text)
  end
end
