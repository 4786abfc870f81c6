-- What the file of an algorithm fills in: read(params) gives a state; wait(params, state, cost),
-- in_use(params, state) and idle_after(params, state) look at it; charge and refund change it and
-- write it down.

local function ttl(microseconds)
  return math.min(math.ceil(microseconds / 1000) + 1, MAX_TTL)
end

local read, wait, in_use, idle_after, charge, refund
