-- Fixed window, aligned to Unix time.

function wait(params, state, cost)
  if state.used + cost <= params.limit + params.slack then
    return 0
  end
  return math.max(state.left, params.clock_epsilon)
end

function in_use(params, state)
  return state.used
end

function idle_after(params, state)
  return state.used > 0 and state.left or 0
end

function charge(params, state, cost)
  state.used = state.used + cost
  local value = string.format('%.0f %.17g', state.number, state.used)
  redis.call('PSETEX', params.key, ttl(state.left), value)
end

function refund(params, state, cost)
  charge(params, state, -math.min(cost, state.used))
end
