--- A user's account: its state in a window, its cells, its balance and its allowance.
--
-- The functions change the account that they are given and nothing else; no I/O, no clock. An account
-- is a table around a `throttle_account` (layout.lua), a window a table that `header.lua` fills in.
--
-- What a user may spend is its *balance* of every limited resource: what the leader has granted,
-- less what was given back, consumed and reserved. While no leader is heard, and for a user that no
-- leader has told of, there is an *allowance* besides: a share per slot, which accrues by the time.
-- What was spent of it makes the balance negative, and the leader covers that when it hears of it.
--
-- Single reservations are not kept, or memory would grow with the traffic. What a request with a
-- ticket has reserved is part of the sum of its period (`ticketed`), from which the ticket releases
-- it; what is left when the period after it is over is of requests that died. Of those without a
-- ticket there are two sums: of this window (`running`, `reserved`) and of the windows before
-- (`old_running`, `old_reserved`). A request that ends releases a mean one of the older sum first.

local bit = require "bit"
local ffi = require "ffi"
local layout = require "throttle.layout"

local band, bor = bit.band, bit.bor
local max, min, sqrt = math.max, math.min, math.sqrt

local MAX_CELLS, REQUEST_STARTS = layout.MAX_CELLS, layout.REQUEST_STARTS
-- Sums are off by rounding; a request is not refused for less than this part of its cost.
local SLACK = 2e-7
-- The rate of requests is measured over about this many seconds.
local RATE_SECONDS = 0.2
-- Totals are capped here: a report cannot carry a larger one.
local MAX_TOTAL = 1e18

-- Flags of a cell
local HAS_MEAN = 1 -- of requests that have ended here, or are expected to cost it
local HAS_ALLOWANCE = 2
local IS_TOLD = 4 -- a leader has told that the resource is limited
local MEAN_IS_TOLD = 8 -- the mean is what the leader takes a request to cost
local IS_CHEAPER = 16 -- `least` is less than what the last ask was for

local FALLBACK, FRESH, REUSED, SAFE, NEWCOMER, FREE = 0, 1, 2, 3, 4, 5
local CELL_BYTES = ffi.sizeof("throttle_cell")

local accounts = {
    SLACK = SLACK,
    RATE_SECONDS = RATE_SECONDS,
    MAX_TOTAL = MAX_TOTAL,
    HAS_MEAN = HAS_MEAN,
    HAS_ALLOWANCE = HAS_ALLOWANCE,
    IS_TOLD = IS_TOLD,
    MEAN_IS_TOLD = MEAN_IS_TOLD,
    IS_CHEAPER = IS_CHEAPER,
    FREE = FREE,
    FRESH = FRESH,
    STATE_NAMES = {
        [FALLBACK] = "fallback",
        [FRESH] = "fresh",
        [REUSED] = "reused",
        [SAFE] = "safe",
        [NEWCOMER] = "newcomer",
        [FREE] = "free",
    },
}

--- An account, without a user: `data` is what is copied from a record and into it; `user` and `cells`
--- are references into it, made once, since LuaJIT allocates memory for each.
function accounts.new()
    local data = ffi.new("throttle_account")
    local cells = {}
    for i = 0, MAX_CELLS - 1 do
        cells[i] = data.cells[i]
    end
    return { data = data, user = data.user, cells = cells, count = 0 }
end

local function has(cell, flag)
    return band(cell.flags, flag) ~= 0
end
accounts.has = has

local function has_allowance(state)
    return state ~= FRESH and state ~= FREE
end
accounts.has_allowance = has_allowance

--- Whether requests without a ticket are running.
local function has_running_requests(user)
    return user.running > 0 or user.old_running > 0
end
accounts.has_running_requests = has_running_requests

--- What running requests have reserved.
local function reserved_of(cell)
    return min(cell.reserved + cell.old_reserved + cell.ticketed_even + cell.ticketed_odd, MAX_TOTAL)
end
accounts.reserved_of = reserved_of

--- Whether requests are running, with a ticket or without.
local function has_reservations(account)
    for i = 0, account.count - 1 do
        if reserved_of(account.cells[i]) > 0 then
            return true
        end
    end
    return has_running_requests(account.user)
end
accounts.has_reservations = has_reservations

--- Whether the user has no limit in this version of the limits.
local function is_free(user, window)
    return user.free_version ~= 0 and user.free_version == window.version
end
accounts.is_free = is_free

-- Cells

--- The cell of a resource and its place, or nil. The first four are looked at without a loop: see
--- `parse_costs` in user_table.lua.
local function find_cell(account, resource)
    local cells, count = account.cells, account.count
    if count > 0 and cells[0].resource == resource then
        return cells[0], 0
    elseif count > 1 and cells[1].resource == resource then
        return cells[1], 1
    elseif count > 2 and cells[2].resource == resource then
        return cells[2], 2
    elseif count > 3 and cells[3].resource == resource then
        return cells[3], 3
    end
    for i = 4, count - 1 do
        if cells[i].resource == resource then
            return cells[i], i
        end
    end
    return nil
end
accounts.find_cell = find_cell

--- A cell that may be overwritten: that of REQUEST_STARTS, which is in no report, or one of a former
--- newcomer without consumption.
local function reusable_cell(account)
    for i = 0, account.count - 1 do
        local cell = account.cells[i]
        if cell.is_limited == 0 and (cell.resource == REQUEST_STARTS or (
            not has(cell, IS_TOLD) and cell.granted == 0 and cell.consumed == 0 and cell.rejected == 0
            and cell.requests == 0 and reserved_of(cell) == 0
        )) then
            return cell, i
        end
    end
    return nil
end

--- The cell of a resource, added if there is none; nil when the account is full.
local function get_or_add_cell(account, resource)
    local cell, place = find_cell(account, resource)
    if cell then
        return cell, place
    end
    if account.count < MAX_CELLS then
        place = account.count
        cell = account.cells[place]
        account.count = place + 1
    else
        cell, place = reusable_cell(account)
        if not cell then
            return nil
        end
    end
    ffi.fill(cell, CELL_BYTES)
    cell.resource = resource
    cell.mean, cell.peak = 1, 1
    return cell, place
end
accounts.get_or_add_cell = get_or_add_cell

-- The state

--- Make it the account of a user that was never seen before.
function accounts.init_account(account, window)
    local user = account.user
    account.count = 0
    ffi.fill(user, ffi.sizeof("throttle_user"))
    user.window = window.number
    user.period = window.period
    user.requested_at, user.asked_at, user.empty_until = -1e300, -1e300, -1e300
    user.accrued_at = window.time
    user.state = FALLBACK
    user.generation = (window.generation - 1) % 4294967296
    user.changed_window = window.number
end

--- The state of the user's credit.
local function state_of(user, window)
    if is_free(user, window) then
        return FREE
    end
    if user.is_known == 0 then
        return window.has_newcomers and NEWCOMER or FALLBACK
    end
    if window.alone_since < 0 then
        return FRESH
    end
    return window.time - window.alone_since < window.lease * window.slot_seconds and REUSED or SAFE
end

local function begin_window(account, window)
    local user = account.user
    local elapsed = window.number - user.window
    local kept = 1 - 1 / max(1, window.reservation_windows)
    user.window = window.number
    -- Requests that died are never finished: others finish in their place, so that with traffic it
    -- is always the newest that seem to run. A part is released in each window.
    if elapsed > window.reservation_windows then
        user.old_running, user.running = 0, 0
    end
    user.old_running = user.old_running * kept + user.running
    user.running = 0
    if user.old_running < 0.01 then
        user.old_running = 0
    end
    for i = 0, account.count - 1 do
        local cell = account.cells[i]
        cell.consumed_before = cell.consumed
        cell.rejected_before = cell.rejected
        cell.requests_before = cell.requests
        cell.old_reserved = user.old_running > 0 and cell.old_reserved * kept + cell.reserved or 0
        cell.reserved = 0
        if window.period ~= user.period then
            -- Of the period before this one, tickets are still good.
            if window.period % 2 == 0 or window.period ~= user.period + 1 then
                cell.ticketed_even = 0
            end
            if window.period % 2 == 1 or window.period ~= user.period + 1 then
                cell.ticketed_odd = 0
            end
        end
    end
    user.period = window.period
end

--- Bring an account to this window: its state, and which resources are limited.
function accounts.refresh(account, window)
    local user = account.user
    if window.number > user.window then
        begin_window(account, window)
    end
    user.generation = window.generation
    user.state = state_of(user, window)
    for i = 0, account.count - 1 do
        local cell = account.cells[i]
        cell.is_limited = user.is_known ~= 0 and user.state ~= FREE and has(cell, IS_TOLD) and 1 or 0
    end
    if user.is_known ~= 0 or user.state == FREE then
        return
    end
    user.lacks_cell = 0
    local defaults = window.defaults
    for i = 0, defaults.count - 1 do
        local cell = get_or_add_cell(account, defaults.resource[i])
        if cell then
            cell.is_limited = 1
            cell.share = defaults.share[i]
        else
            user.lacks_cell = 1
        end
    end
end

--- Add the shares since the last time: docs/node.md, "Allowance".
--- False: the user's fraction must be known first.
function accounts.accrue_allowance(account, window, fraction)
    local user = account.user
    local since = user.accrued_at
    if user.is_known ~= 0 and window.alone_since > since then
        since = window.alone_since
    end
    local slots = max(0, (window.time - since) / window.slot_seconds)
    for i = 0, account.count - 1 do
        local cell = account.cells[i]
        if cell.is_limited ~= 0 then
            if not has(cell, HAS_ALLOWANCE) then
                if not fraction then
                    return false
                end
                cell.flags = bor(cell.flags, HAS_ALLOWANCE)
                cell.allowance = cell.allowance + fraction * cell.peak -- it may have a debt already
                if user.is_known == 0 then
                    cell.allowance = cell.allowance + cell.share
                end
            end
            cell.allowance = min(cell.allowance + cell.share * slots, max(cell.share, cell.peak))
        end
    end
    user.accrued_at = max(user.accrued_at, window.time)
    return true
end

-- The balance

--- What may be spent of the leader's grants; below 0: more was spent.
local function balance_of(cell)
    return cell.granted - cell.returned - cell.consumed - reserved_of(cell)
end
accounts.balance_of = balance_of

--- Whether the leader's grants cover a cost.
function accounts.is_covered(cell, cost)
    return balance_of(cell) >= cost - max(cost, cell.granted * 1e-9) * SLACK
end

--- How many more requests may come within some seconds, by their rate; the last one says nothing of the next.
function accounts.coming_requests(rate, seconds)
    local mean = max(0, rate - 1 / RATE_SECONDS) * seconds
    return 1.25 * mean + 3 * sqrt(mean)
end

--- Whether it is known what a request costs.
function accounts.knows_mean(cell)
    return has(cell, HAS_MEAN + MEAN_IS_TOLD)
end

--- What a request costs for which credit is asked.
function accounts.ask_cost(cell)
    return cell.least > 0 and cell.least or cell.mean
end

--- Whether to drop the account, which is up to date, would forget credit, a debt or a reservation.
function accounts.must_keep(account)
    local user = account.user
    if has_reservations(account) then
        return true
    end
    for i = 0, account.count - 1 do
        local cell = account.cells[i]
        if cell.is_limited ~= 0 then
            if user.is_known ~= 0 and math.abs(balance_of(cell)) > 1e-6 * cell.mean then
                return true
            end
            if has_allowance(user.state) and cell.share > 0 and cell.allowance < max(cell.share, cell.peak) then
                return true
            end
        end
    end
    return false
end

return accounts
