-- What the file of an algorithm fills in: read(rule) gives a cell; wait(rule, cell, cost),
-- in_use(rule, cell) and idle_after(rule, cell) look at it; charge and refund change it and
-- write it down.

local function life(microseconds)
  return math.min(math.ceil(microseconds / 1000) + 1, LONGEST)
end

local read, wait, in_use, idle_after, charge, refund
