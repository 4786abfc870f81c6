-- Sliding counter: of the window before counts the part that still overlaps the last span.

local function overlap(params, state)
  if state.before == 0 then
    return 0
  end
  return state.before * math.min(math.max(state.left / params.span, 0), 1)
end

function wait(params, state, cost)
  local left = params.limit - cost - state.used
  if overlap(params, state) <= left + params.slack then
    return 0
  end
  if left >= 0 then
    return math.max(state.left - left / state.before * params.span, params.clock_epsilon)
  end
  -- In the next window this one's use is the one that shrinks.
  local share = (params.limit - cost) / state.used
  return math.max(state.left + (1 - share) * params.span, params.clock_epsilon)
end

function in_use(params, state)
  return state.used + overlap(params, state)
end

function idle_after(params, state)
  if state.used > 0 then
    return state.left + params.span
  end
  return state.before > 0 and state.left or 0
end

function charge(params, state, cost)
  state.used = state.used + cost
  local value = string.format('%.0f %.17g %.17g', state.number, state.used, state.before)
  redis.call('PSETEX', params.key, ttl(state.left + params.span), value)
end

function refund(params, state, cost)
  local here = math.min(cost, state.used)
  state.before = math.max(state.before - (cost - here), 0)
  charge(params, state, -here)
end
