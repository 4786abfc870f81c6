-- Windows: "number used before": of the window, counted since 1970; what was used in it, and
-- (sliding counter) in the window before.

function read(params)
  local value = redis.call('GET', params.key)
  local number, used, before = string.match(value or '', '^(%S+) (%S+) ?(%S*)$')
  number, used, before = tonumber(number), tonumber(used) or 0, tonumber(before) or 0
  local current = math.floor((now + params.clock_epsilon) / params.span)
  if not number or number < current then
    before = number == current - 1 and used or 0
    number, used = current, 0
  end
  return {number = number, used = used, before = before, left = (number + 1) * params.span - now}
end
