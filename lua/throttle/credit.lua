--- Credit: what a leader's Quota grants an account, what the node asks for, and what it gives back.
--
-- docs/node.md, "Asking for credit", "Giving back" and "Quotas". The functions change the account
-- that they are given (accounts.lua) and nothing else.

local bit = require "bit"
local accounts = require "throttle.accounts"
local layout = require "throttle.layout"

local band, bnot, bor = bit.band, bit.bnot, bit.bor
local ceil, floor, huge, max, min = math.ceil, math.floor, math.huge, math.max, math.min
local ask_cost, balance_of, coming_requests = accounts.ask_cost, accounts.balance_of, accounts.coming_requests
local find_cell, get_or_add_cell = accounts.find_cell, accounts.get_or_add_cell
local has, is_covered, knows_mean, reserved_of =
    accounts.has, accounts.is_covered, accounts.knows_mean, accounts.reserved_of
local HAS_ALLOWANCE, IS_CHEAPER, IS_TOLD, MEAN_IS_TOLD =
    accounts.HAS_ALLOWANCE, accounts.IS_CHEAPER, accounts.IS_TOLD, accounts.MEAN_IS_TOLD
local MAX_TOTAL = accounts.MAX_TOTAL
local REQUEST_STARTS = layout.REQUEST_STARTS

local credit = {}

--- Sums are off by rounding, but no more is given back than was granted.
local function return_units(cell, amount)
    cell.returned = min(cell.returned + amount, cell.granted)
end

--- The largest reservation of a resource whose cost is unknown: the leader covers what an ask tells of it.
local function guess_of(account)
    local guess = 0
    if account.user.is_known ~= 0 then
        for i = 0, account.count - 1 do
            local cell = account.cells[i]
            if has(cell, IS_TOLD) and not knows_mean(cell) then
                guess = max(guess, reserved_of(cell))
            end
        end
    end
    return guess
end

--- Write what is granted of a resource into its cell. Whether it is more than before.
local function take_share(user, cell, granted, safe, is_whole)
    cell.flags = bor(cell.flags, IS_TOLD)
    cell.share = safe
    if granted <= cell.granted then
        return false
    end
    local covered = cell.consumed + min(reserved_of(cell), user.guess_told)
    covered = max(cell.granted, cell.returned + covered)
    if not is_whole and not knows_mean(cell) and granted - covered > 1e-9 * granted then
        -- The node has asked for one request, and did not know what it costs. What covers the
        -- requests that the leader was told of says nothing of it.
        cell.mean = granted - covered
        cell.peak = cell.mean
        cell.flags = bor(cell.flags, MEAN_IS_TOLD)
    end
    cell.granted = granted
    return true
end

--- Write the shares of a Quota into an account. `numbers` has the number of each resource; one that
--- has none there has found no room in the memory. Whether more was granted.
function credit.take_shares(account, shares, numbers, is_whole)
    local user = account.user
    local is_more, lacking = false, nil
    user.free_version = 0
    for i = 0, account.count - 1 do
        local cell = account.cells[i]
        if user.is_known == 0 then
            -- What a newcomer has left is not for the time in which no leader will be heard.
            cell.flags = band(cell.flags, bnot(HAS_ALLOWANCE))
            cell.allowance = min(0, cell.allowance)
        end
        if not is_whole then
            cell.flags = band(cell.flags, bnot(IS_TOLD))
        end
    end
    user.is_known = 1
    user.lacks_cell = 0
    for resource, share in pairs(shares) do
        local cell = numbers[resource] and find_cell(account, numbers[resource])
        if cell then
            is_more = take_share(user, cell, share[1], share[2], is_whole) or is_more
        else
            lacking = lacking or {}
            lacking[#lacking + 1] = resource
        end
    end
    if lacking then
        table.sort(lacking) -- so that the order of cells, which decides ties, is that of the names
        for _, resource in ipairs(lacking) do
            local cell = numbers[resource] and get_or_add_cell(account, numbers[resource])
            if cell then
                is_more = take_share(user, cell, shares[resource][1], shares[resource][2], is_whole) or is_more
            else
                user.lacks_cell = 1
            end
        end
    end
    return is_more
end

--- Make the balance of each resource what a slot has, whatever is left of the slot before.
function credit.set_balances(account, shares, numbers)
    for resource, share in pairs(shares) do
        local cell = numbers[resource] and find_cell(account, numbers[resource])
        if cell then
            local missing = share[2] - balance_of(cell)
            if missing > 0 then
                cell.granted = cell.granted + missing
            else
                return_units(cell, -missing)
            end
        end
    end
end

--- Give back all credit if it does not cover even a cheap request; whether there was any.
local function give_back_parts(account)
    local is_short, has_credit = false, false
    if account.user.is_known == 0 then
        return false
    end
    for i = 0, account.count - 1 do
        local cell = account.cells[i]
        if cell.is_limited ~= 0 then
            is_short = is_short or not is_covered(cell, min(ask_cost(cell), cell.mean))
            has_credit = has_credit or balance_of(cell) > 1e-9 * cell.mean
        end
    end
    if not (is_short and has_credit) then
        return false
    end
    for i = 0, account.count - 1 do
        local cell = account.cells[i]
        local balance = balance_of(cell)
        if cell.is_limited ~= 0 and balance > 0 then
            return_units(cell, balance)
        end
    end
    return true
end

--- The part of an Ask on this user: how many more requests it needs, and its credit.
--
-- `names:resource_name(number)` is the name of a resource. Without `wants` it tells of what was given back and
-- asks for nothing.
local function ask_of(account, window, names, wants)
    local user = account.user
    local coming = 1 + ceil(coming_requests(user.rate, 2 * window.lead_seconds))
    local missing, fewest = 0, huge
    local is_unknown, is_cheap = user.is_known == 0, false
    local resources = {}
    for i = 0, account.count - 1 do
        local cell = account.cells[i]
        if user.is_known ~= 0 and has(cell, IS_TOLD) and cell.resource ~= REQUEST_STARTS then
            local cost = wants and ask_cost(cell) or cell.mean
            local balance = balance_of(cell)
            if wants and cost > 0 then
                local wanted = (coming - 1) * cell.mean + max(cell.peak, cell.least) - balance
                if cost > cell.mean and cost > balance and balance > 1e-6 * cost then
                    cost = cost - balance -- the rest of a large request
                end
                missing = max(missing, wanted / cost)
                fewest = min(fewest, wanted / cost)
                is_cheap = is_cheap or cost < cell.mean * (1 - 1e-6)
            end
            resources[names:resource_name(cell.resource)] = {
                cell.granted,
                cell.returned,
                max(0, min(cell.consumed + reserved_of(cell), MAX_TOTAL)),
                knows_mean(cell) and cost or 0,
            }
            is_unknown = is_unknown or not knows_mean(cell)
        end
    end
    if is_cheap then
        -- Requests' worth of a large one may be far more of a resource that it does not need.
        missing = min(missing, max(coming, fewest))
    end
    if wants and is_unknown and (missing > 0 or user.is_known == 0) then
        missing = 1 -- the leader knows what one costs
    end
    return { requests = max(0, min(ceil(missing - 1e-6), 1e9)), waits = false, resources = resources }
end

--- The part of an Ask on a user that needs credit, and whether the account has changed.
--
-- Credit that does not cover a single request, of all resources, is of no use here: it is given back.
function credit.make_ask(account, window, names)
    local user = account.user
    local waits = user.has_waiting ~= 0
    local guess = guess_of(account)
    local is_changed = give_back_parts(account)
    local ask = ask_of(account, window, names, true)
    for i = 0, account.count - 1 do
        local cell = account.cells[i]
        is_changed = is_changed or has(cell, IS_CHEAPER)
        cell.flags = band(cell.flags, bnot(IS_CHEAPER))
    end
    is_changed = is_changed or waits or user.asked_waiting ~= 0 or guess ~= user.guess_told
    user.guess_told = guess
    user.has_waiting = 0
    user.asked_waiting = waits and 1 or 0
    if is_changed then
        user.changed_window = window.number
    end
    ask.waits = waits
    return ask, is_changed
end

--- What an idle user keeps: whole requests' worth, as no request can use the rest, and enough for a large one.
local function kept_credit(cell, part, least)
    if not part then
        return 0
    end
    return cell.peak + (max(1, floor(max(least, part * cell.share / cell.mean) + 0.5)) - 1) * cell.mean
end

--- Give back all credit but for a part of a slot's share, or some requests; without `keeps`, all of it.
--- The part of an Ask that tells of it; nil if there was not a request's worth.
function credit.give_back(account, window, names, keeps)
    local user = account.user
    -- What may be needed before more can come.
    local part = keeps and max(0.4, window.lead_seconds / window.slot_seconds) or nil
    local least = 1 + coming_requests(user.rate, window.lead_seconds)
    local requests = -1
    for i = 0, account.count - 1 do
        local cell = account.cells[i]
        if cell.is_limited ~= 0 and cell.mean > 0 then
            local spare = (balance_of(cell) - kept_credit(cell, part, least)) / cell.mean
            if requests < 0 or (part and spare < requests) or (not part and spare > requests) then
                requests = max(0, spare)
            end
        end
    end
    if requests < (part and 1 or 1e-6) then
        return nil
    end
    for i = 0, account.count - 1 do
        local cell = account.cells[i]
        if cell.is_limited ~= 0 then
            return_units(cell, max(0, balance_of(cell) - kept_credit(cell, part, least)))
        end
    end
    user.guess_told = guess_of(account)
    user.changed_window = window.number
    return ask_of(account, window, names, false)
end

return credit
