-- All limits are asked, and all are charged or none.

local limit_set, states = {}, {}
for i = 1, #KEYS do
  local at = 5 * i - 2
  limit_set[i] = {
    key = KEYS[i],
    limit = tonumber(ARGV[at]),
    rate = tonumber(ARGV[at + 1]),
    span = tonumber(ARGV[at + 2]),
    slack = tonumber(ARGV[at + 3]),
    clock_epsilon = tonumber(ARGV[at + 4]),
  }
  states[i] = read(limit_set[i])
end

if verb == 'refund' then
  for i, params in ipairs(limit_set) do
    if in_use(params, states[i]) > 0 then
      refund(params, states[i], cost)
    end
  end
  return 1
end

local longest, waits = 0, {}
for i, params in ipairs(limit_set) do
  waits[i] = wait(params, states[i], cost)
  longest = math.max(longest, waits[i])
end

local taken = cost
if verb == 'lease' then
  local room = tonumber(ARGV[5 * #KEYS + 4])
  for i, params in ipairs(limit_set) do
    room = math.min(room, params.limit - in_use(params, states[i]))
  end
  taken = cost + math.max(math.floor(room - cost), 0)
end
if longest == 0 and taken > 0 then
  for i, params in ipairs(limit_set) do
    charge(params, states[i], taken)
  end
end
if verb == 'allow' then
  return longest == 0 and 1 or 0
end

-- The limit that makes one wait the longest, or else has the least left.
local index, least, reset_after = 1, math.huge, 0
for i, params in ipairs(limit_set) do
  local left = math.max(params.limit - in_use(params, states[i]), 0)
  if i == 1 or waits[i] > waits[index] or (waits[i] == waits[index] and left < least) then
    index, least = i, left
    reset_after = idle_after(params, states[i])
  end
end
if verb == 'lease' then
  -- What of the grant may come back: no more than any of the limits has in use.
  local used = math.huge
  for i, params in ipairs(limit_set) do
    used = math.min(used, in_use(params, states[i]))
  end
  least, reset_after = longest == 0 and taken or 0, used
end
return string.format('%d %d %.17g %.17g %.17g',
  longest == 0 and 1 or 0, index - 1, least, longest, math.max(reset_after, longest))
