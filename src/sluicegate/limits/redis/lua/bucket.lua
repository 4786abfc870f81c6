-- Token bucket: two doubles, the units in use and the time of that. Not GCRA's one number: a
-- million per second times Unix time would leave no room for units.

function read(params)
  local value = redis.call('GET', params.key)
  local used, at = 0, now
  if value and #value == 16 then
    used, at = struct.unpack('<dd', value)
  end
  if at < now then
    used, at = math.max(used - (now - at) * params.rate, 0), now
  end
  return {used = used, at = at}
end

function wait(params, state, cost)
  local missing = state.used + (cost - params.limit)
  if missing <= params.slack then
    return 0
  end
  return missing / params.rate + (state.at - now)
end

function in_use(params, state)
  return state.used
end

function idle_after(params, state)
  return state.used > 0 and state.used / params.rate + (state.at - now) or 0
end

function charge(params, state, cost)
  state.used = state.used + cost
  local value = struct.pack('<dd', state.used, state.at)
  redis.call('PSETEX', params.key, ttl(idle_after(params, state)), value)
end

function refund(params, state, cost)
  if state.used > cost then
    charge(params, state, -cost)
  else
    redis.call('DEL', params.key)
  end
end
