--- The most frequent requests, those of users that have credit, in few instructions.
--
-- A user whose leader is heard, whose account is up to date, and whose balance covers the requests that
-- may come, passes by a comparison for each resource. Nothing is asked for, nobody waits, no allowance
-- is touched. The functions here do that, and the end of such a request, on the record itself, which is
-- locked. In any other case they change nothing and return false, and the general way decides:
-- `user_table.lua` with `admission.lua`. The rules are the same, and so is the account afterwards.
--
-- There are no loops here, but cells one by one: nginx calls Lua anew in each phase of a request, and
-- LuaJIT compiles such a call as a whole only if there is no loop in it. Its interpreter would join
-- the parts, at several times the cost.

local accounts = require "throttle.accounts"
local admission = require "throttle.admission"

local max = math.max
local coming_requests, find_cell, is_covered = accounts.coming_requests, accounts.find_cell, accounts.is_covered
local count_amount, end_running, rate_at, release_mean =
    admission.count_amount, admission.end_running, admission.rate_at, admission.release_mean
local FRESH = accounts.FRESH
-- An account with more cells takes the general way.
local CELLS = 4

local fast_path = {}

--- Prepare the place of a record for the functions below: references are made once, not in each request.
function fast_path.prepare(place)
    local cells = place.account.cells
    place.cells = { [0] = cells[0], cells[1], cells[2], cells[3] }
end

--- Whether the account of a record needs nothing but a look at its credit. `view` is what was published
--- last; its window has not ended.
function fast_path.is_current(place, view)
    local user = place.user
    if
        user.generation ~= view.generation
        or user.window < view.window
        or user.state ~= FRESH
        or user.lacks_cell ~= 0
        or place.account.count > CELLS
    then
        return false
    end
    place.count = place.account.count
    return true
end

--- Whether a resource is not limited, or its balance covers `requests` requests of mean cost.
local function has_credit(cell, requests)
    return cell.is_limited == 0 or cell.mean <= 0 or is_covered(cell, requests * cell.mean)
end

local function reserve(cell)
    if cell.is_limited ~= 0 and cell.mean > 0 then
        cell.reserved = cell.reserved + cell.mean
    end
end

--- Let a request of mean cost begin. False if it is short of credit, or more should be asked for.
function fast_path.begin_request(memory, place, view, time)
    local user, cells, count = place.user, place.cells, place.count
    local rate = rate_at(user, time)
    local requests = 1 + max(1, coming_requests(rate, view.lead_seconds)) -- this one, and those to come
    if
        count > 0 and not has_credit(cells[0], requests)
        or count > 1 and not has_credit(cells[1], requests)
        or count > 2 and not has_credit(cells[2], requests)
        or count > 3 and not has_credit(cells[3], requests)
    then
        return false
    end
    memory:begin_change(place)
    user.rate = rate
    user.requested_at = time
    user.running = user.running + 1
    if count > 0 then
        reserve(cells[0])
    end
    if count > 1 then
        reserve(cells[1])
    end
    if count > 2 then
        reserve(cells[2])
    end
    if count > 3 then
        reserve(cells[3])
    end
    user.changed_window = user.window
    memory:end_change(place)
    return true
end

--- Count what a request without a ticket has cost. False if a resource has no cell yet.
function fast_path.finish_request(memory, place, amounts)
    local user, cells, count, many = place.user, place.cells, place.count, amounts.count
    local resource, amount = amounts.resource, amounts.amount
    if many > CELLS then
        return false
    end
    local first = many > 0 and find_cell(place, resource[0])
    local second = many > 1 and find_cell(place, resource[1])
    local third = many > 2 and find_cell(place, resource[2])
    local fourth = many > 3 and find_cell(place, resource[3])
    if first == nil or second == nil or third == nil or fourth == nil then
        return false
    end
    memory:begin_change(place)
    local is_old, part = end_running(user)
    if count > 0 then
        release_mean(user, cells[0], is_old, part)
    end
    if count > 1 then
        release_mean(user, cells[1], is_old, part)
    end
    if count > 2 then
        release_mean(user, cells[2], is_old, part)
    end
    if count > 3 then
        release_mean(user, cells[3], is_old, part)
    end
    if first then
        count_amount(first, amount[0])
    end
    if second then
        count_amount(second, amount[1])
    end
    if third then
        count_amount(third, amount[2])
    end
    if fourth then
        count_amount(fourth, amount[3])
    end
    user.changed_window = user.window
    memory:end_change(place)
    return true
end

return fast_path
