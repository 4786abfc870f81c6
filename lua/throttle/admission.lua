--- The rules by which a request is admitted: docs/node.md, "A request begins" and "A request ends".
--
-- The functions change the account that they are given (accounts.lua) and nothing else; no I/O, no
-- clock. `costs` is a table of `count`, and from 0 on `resource` and `amount`; nil: a request of mean
-- cost. A ticket is such a table, too, with the `period` in which it was given.

local bit = require "bit"
local ffi = require "ffi"
local accounts = require "throttle.accounts"
local layout = require "throttle.layout"

local band, bnot, bor = bit.band, bit.bnot, bit.bor
local huge, max, min = math.huge, math.max, math.min
local ask_cost, coming_requests = accounts.ask_cost, accounts.coming_requests
local find_cell, get_or_add_cell = accounts.find_cell, accounts.get_or_add_cell
local has, has_allowance, is_covered = accounts.has, accounts.has_allowance, accounts.is_covered
local FRESH, HAS_MEAN, IS_CHEAPER = accounts.FRESH, accounts.HAS_MEAN, accounts.IS_CHEAPER
local MAX_TOTAL, RATE_SECONDS, SLACK = accounts.MAX_TOTAL, accounts.RATE_SECONDS, accounts.SLACK
local REQUEST_STARTS = layout.REQUEST_STARTS

-- A mean over about eight requests follows a user whose costs change.
local MEAN_WEIGHT = 0.125
-- Large requests may be rare: what they cost is remembered for longer.
local PEAK_WEIGHT = 0.015625
-- A request without an expected cost is cheaper than what was asked for if the mean is less than this part.
local CHEAPER_MEAN = 0.5

local admission = {}

-- Whether a request may pass

local function cost_of(cell, costs)
    if cell.resource == REQUEST_STARTS then
        return 1
    end
    if not costs then
        return cell.mean
    end
    for i = 0, costs.count - 1 do
        if costs.resource[i] == cell.resource then
            return costs.amount[i]
        end
    end
    return 0
end

--- Whether there is room for a cost above 0.
local function has_room(user, cell, cost)
    if user.is_known ~= 0 and is_covered(cell, cost) then
        return true
    end
    if not has_allowance(user.state) or cell.share <= 0 then
        return false
    end
    -- A request larger than the allowance can ever be passes when that is full.
    local needed = min(cost, max(cell.share, cell.peak))
    return cell.allowance >= needed - needed * SLACK
end

--- The place of the cell that a request is short of, or nil.
--
-- Of several, the one whose share is worth the fewest requests: credit comes in whole requests, so
-- all resources run out together, and a user wants to know which one to raise.
function admission.scarcest_short(account, costs)
    local user = account.user
    if user.lacks_cell ~= 0 and account.count > 0 then
        return 0
    end
    local short, least = nil, huge
    for i = 0, account.count - 1 do
        local cell = account.cells[i]
        if cell.is_limited ~= 0 then
            local cost = cost_of(cell, costs)
            if cost > 0 and not has_room(user, cell, cost) then
                local worth = cell.share / cost
                if not short or worth < least then
                    short, least = i, worth
                end
            end
        end
    end
    return short
end

--- Whether a request may pass ahead of its grant: no other one has, of any resource it needs.
function admission.can_float(account, costs)
    local user = account.user
    if user.state ~= FRESH or user.may_float == 0 or user.lacks_cell ~= 0 then
        return false
    end
    for i = 0, account.count - 1 do
        local cell = account.cells[i]
        if cell.is_limited ~= 0 and cost_of(cell, costs) > 0 and not is_covered(cell, 0) then
            return false
        end
    end
    return true
end

--- The rate of a user's requests when one comes.
local function rate_at(user, time)
    local elapsed = max(0, time - user.requested_at) / RATE_SECONDS
    return user.rate / (1 + elapsed + 0.5 * elapsed * elapsed) + 1 / RATE_SECONDS
end
admission.rate_at = rate_at

--- Update the rate of a user's requests: one has come.
function admission.count_arrival(user, window)
    user.rate = rate_at(user, window.time)
    user.requested_at = window.time
end

-- Whether to ask for credit

--- Whether a request costs less of a resource than what the leader was asked for.
local function costs_less(cell, costs)
    local cost = cost_of(cell, costs)
    if not costs then -- the mean moves from request to request
        return cost > 0 and cost < CHEAPER_MEAN * cell.least
    end
    return cost > 0 and cost < (1 - 1e-6) * ask_cost(cell)
end

--- Whether a request costs less than what the leader has not: there may be enough for it.
local function is_cheaper(account, costs)
    for i = 0, account.count - 1 do
        if account.cells[i].is_limited ~= 0 and costs_less(account.cells[i], costs) then
            return true
        end
    end
    return false
end

--- Whether the leader has nothing for a request. For one that can wait it may recall some, if asked.
local function is_empty(account, costs, can_wait, window)
    local user = account.user
    return window.time < user.empty_until
        and (user.empty_for_all ~= 0 or not can_wait)
        and not is_cheaper(account, costs)
end
admission.is_empty = is_empty

--- Whether to ask the leader now: the credit is used up, or would be before more can come.
function admission.needs_credit(account, costs, is_short, can_wait, window)
    local user = account.user
    if is_empty(account, costs, is_short and can_wait, window) then
        return false
    end
    if user.is_asking ~= 0 and window.time < user.asked_at + window.retry_seconds then
        return false
    end
    if is_short or user.is_known == 0 then
        return true
    end
    local coming = max(1, coming_requests(user.rate, window.lead_seconds))
    for i = 0, account.count - 1 do
        local cell = account.cells[i]
        if cell.is_limited ~= 0 then
            local cost = cost_of(cell, costs)
            if cost > 0 and not is_covered(cell, coming * cost) then
                return true
            end
        end
    end
    return false
end

--- Credit is needed for a request: the next ask is for the cheapest of those. Whether anything has changed.
function admission.note_least(account, costs, window)
    local user = account.user
    local is_first = user.is_asking == 0 and window.time >= user.empty_until
    local is_changed = false
    for i = 0, account.count - 1 do
        local cell = account.cells[i]
        if cell.is_limited ~= 0 then
            local least = cell.least
            if is_first then
                cell.flags = band(cell.flags, bnot(IS_CHEAPER))
                cell.least = costs and min(cost_of(cell, costs), MAX_TOTAL) or 0
            elseif costs_less(cell, costs) then
                cell.flags = bor(cell.flags, IS_CHEAPER)
                cell.least = min(cost_of(cell, costs), MAX_TOTAL)
            end
            is_changed = is_changed or least ~= cell.least
        end
    end
    return is_changed
end

--- Whether a request is short that costs less than what the last ask was for.
function admission.has_cheaper(account)
    for i = 0, account.count - 1 do
        if account.cells[i].is_limited ~= 0 and has(account.cells[i], IS_CHEAPER) then
            return true
        end
    end
    return false
end

-- A request begins, and ends

--- Reserve the cost of each limited resource, on a ticket if there is one.
function admission.begin_request(account, costs, ticket)
    local user = account.user
    if ticket then
        ticket.period = user.period
        ticket.count = 0
    else
        user.running = user.running + 1
    end
    for i = 0, account.count - 1 do
        local cell = account.cells[i]
        local cost = cell.is_limited ~= 0 and cost_of(cell, costs) or 0
        if cost > 0 then
            if has_allowance(user.state) and not (user.is_known ~= 0 and is_covered(cell, cost)) then
                cell.allowance = cell.allowance - cost
            end
            if cell.resource ~= REQUEST_STARTS then
                if ticket then
                    if user.period % 2 == 0 then
                        cell.ticketed_even = cell.ticketed_even + cost
                    else
                        cell.ticketed_odd = cell.ticketed_odd + cost
                    end
                    ticket.resource[ticket.count] = cell.resource
                    ticket.amount[ticket.count] = cost
                    ticket.count = ticket.count + 1
                else
                    cell.reserved = cell.reserved + cost
                end
            end
        end
    end
    user.changed_window = user.window
end

local function update_mean(cell, amount)
    amount = min(amount, MAX_TOTAL)
    if not has(cell, HAS_MEAN) then
        cell.flags = bor(cell.flags, HAS_MEAN)
        cell.mean, cell.peak = amount, amount
        return
    end
    local has_peak = cell.peak ~= cell.mean
    cell.mean = cell.mean + (amount - cell.mean) * MEAN_WEIGHT
    if has_peak then
        cell.peak = cell.peak + (amount - cell.peak) * PEAK_WEIGHT
    end
    if not has_peak or cell.peak < cell.mean * (1 + 1e-3) then
        cell.peak = cell.mean
    end
end

--- A request is short: what is asked for must follow what it is expected to cost.
function admission.learn_costs(account, costs)
    if not costs then
        return
    end
    for i = 0, account.count - 1 do
        local cell = account.cells[i]
        local cost = cell.is_limited ~= 0 and cost_of(cell, costs) or 0
        if cost > 0 and (cost ~= cell.mean or not has(cell, HAS_MEAN)) then
            update_mean(cell, cost)
            cell.peak = max(cell.peak, min(cost, MAX_TOTAL))
        end
    end
end

--- Count a refusal, for every resource that the request would have used: all of them are wanted.
function admission.count_refusal(account, costs)
    for i = 0, account.count - 1 do
        local cell = account.cells[i]
        if cell.is_limited ~= 0 and cost_of(cell, costs) > 0 then
            cell.rejected = (cell.rejected + 1) % 4294967296
        end
    end
    account.user.changed_window = account.user.window
end

local released = ffi.new("double[8]")

--- A request without a ticket ends, an older one if there are any. Whether it is an older one, and the
--- part of what these have reserved that is to be released.
local function end_running(user)
    local part = 0
    if user.old_running > 0 then
        part = user.old_running > 1 and 1 / user.old_running or 1
        user.old_running = user.old_running > 1.01 and user.old_running - 1 or 0
        return true, part
    end
    if user.running > 0 then
        part = user.running > 1 and 1 / user.running or 1
        user.running = user.running > 1.01 and user.running - 1 or 0
    end
    return false, part
end
admission.end_running = end_running

--- Release what a request without a ticket has reserved of a resource: the mean of all of them.
local function release_mean(user, cell, is_old, part)
    local amount
    if is_old then
        amount = cell.old_reserved * part
        cell.old_reserved = user.old_running == 0 and 0 or cell.old_reserved - amount
    else
        amount = cell.reserved * part
        cell.reserved = user.running == 0 and 0 or cell.reserved - amount
    end
    return amount
end
admission.release_mean = release_mean

--- A request ends: release what its ticket has reserved, unless the ticket has expired.
local function release_ticket(account, ticket)
    local user = account.user
    if user.period ~= ticket.period and user.period ~= ticket.period + 1 then
        return
    end
    for k = 0, ticket.count - 1 do
        local cell, place = find_cell(account, ticket.resource[k])
        if cell and ticket.period % 2 == 0 then
            released[place] = min(ticket.amount[k], cell.ticketed_even)
            cell.ticketed_even = cell.ticketed_even - released[place]
        elseif cell then
            released[place] = min(ticket.amount[k], cell.ticketed_odd)
            cell.ticketed_odd = cell.ticketed_odd - released[place]
        end
    end
end

--- Count what a request has cost of a resource.
local function count_amount(cell, amount)
    cell.consumed = min(cell.consumed + amount, MAX_TOTAL)
    if amount > 0 then
        cell.requests = (cell.requests + 1) % 4294967296
        update_mean(cell, amount)
    end
end
admission.count_amount = count_amount

--- A request ends: count what it cost, and release what was reserved.
function admission.finish_request(account, amounts, ticket)
    local user = account.user
    ffi.fill(released, 64)
    if ticket then
        release_ticket(account, ticket)
    else
        local is_old, part = end_running(user)
        for i = 0, account.count - 1 do
            released[i] = release_mean(user, account.cells[i], is_old, part)
        end
    end
    for i = 0, amounts.count - 1 do
        local resource = amounts.resource[i]
        if not resource then
            break -- LuaJIT 2.1-20230119 was seen to run this loop once too often, in 3 of 2 million calls
        end
        local cell, place = get_or_add_cell(account, resource)
        if cell then
            released[place] = released[place] - amounts.amount[i]
            count_amount(cell, amounts.amount[i])
        end
    end
    if has_allowance(user.state) then
        for i = 0, account.count - 1 do
            if account.cells[i].is_limited ~= 0 then
                account.cells[i].allowance = account.cells[i].allowance + released[i]
            end
        end
    end
    user.changed_window = user.window
end

return admission
