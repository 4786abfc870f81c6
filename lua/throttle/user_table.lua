--- The users of a host: a request begins and ends, and what the reporter reads and writes.
--
-- All workers count in one memory (`memory.lua`). A call locks the user's record, copies its account,
-- decides on the copy by the rules of `admission.lua` and `credit.lua`, and writes it back. So two
-- workers never let the same unit pass twice, and a worker may be killed at any instruction.
--
-- Users beyond `max_users` share overflow records by a hash of their names: less for them, no more
-- for anyone.
--
-- Names are bytes here, as they are in the memory: `protocol.utf8_name` has been applied.

local bit = require "bit"
local ffi = require "ffi"
local accounts = require "throttle.accounts"
local admission = require "throttle.admission"
local credit = require "throttle.credit"
local fast_path = require "throttle.fast_path"
local layout = require "throttle.layout"
local memory = require "throttle.memory"
local stable_hash = require "throttle.stable_hash"

local bxor, lshift, rshift, tobit = bit.bxor, bit.lshift, bit.rshift, bit.tobit
local floor, huge, max = math.floor, math.huge, math.max

ffi.cdef [[
int memcmp(const void *, const void *, size_t);
]]

local LOCKS = layout.LOCKS
local MAX_COSTS = 64 -- of a request
local OVERFLOW_RECORDS = 256 -- of each service
-- A free user has no totals: its record is refreshed so often, or it would be forgotten as idle.
local REFRESH_WINDOWS = 60
local FREE = accounts.FREE
local TILDE = ("~"):byte()
-- Users of a Quota that are written in one go, in about a millisecond.
local PAUSE_USERS = 200

local user_table = { OVERFLOW_RECORDS = OVERFLOW_RECORDS }
user_table.__index = user_table

--- `opts`: node_id, max_users.
function user_table.new(shared, header, opts)
    return setmetatable({
        memory = shared,
        header = header,
        records = shared.records,
        heads = shared.heads,
        shared = shared.header,
        buckets = shared.shape.buckets,
        node_id = opts.node_id,
        max_users = opts.max_users,
        account = accounts.new(),
        costs = { count = 0, resource = {}, amount = {} },
        places = {}, -- where a user's record was found last, by service and name
        place_count = 0,
        no_memory_until = -huge,
        -- Of the record that is open:
        locked = nil, -- its lock
        place = nil, -- where it is; nil: there is none yet
        name = nil,
        service = nil,
        bucket = 0,
        is_overflow = false,
    }, user_table)
end

--- Add one amount to `costs`; nil and what is wrong.
local function add_cost(self, what, resource, amount)
    local costs = self.costs
    if type(amount) ~= "number" or not (amount >= 0 and amount < huge) then
        return nil, what .. " must be finite numbers >= 0, got " .. tostring(amount) .. " for " .. tostring(resource)
    end
    if costs.count == MAX_COSTS then
        return nil, what .. " must have at most " .. MAX_COSTS .. " resources"
    end
    local number, err = self.header:resource_number(resource)
    if not number then
        return nil, err
    end
    costs.resource[costs.count] = number
    costs.amount[costs.count] = amount
    costs.count = costs.count + 1
    return costs
end

--- Parse amounts by resource into `costs`; nil and what is wrong.
--
-- The first three are taken without a loop, here and below: a request is one call, and LuaJIT does
-- not compile a call with several short loops in it as a whole.
function user_table:parse_costs(what, amounts)
    if type(amounts) ~= "table" then
        return nil, what .. " must be a table of amounts by resource, got " .. tostring(amounts)
    end
    local costs, err = self.costs, nil
    costs.count = 0
    local resource, amount = next(amounts)
    if resource ~= nil then
        costs, err = add_cost(self, what, resource, amount)
        resource, amount = next(amounts, resource)
    end
    if costs and resource ~= nil then
        costs, err = add_cost(self, what, resource, amount)
        resource, amount = next(amounts, resource)
    end
    if costs and resource ~= nil then
        costs, err = add_cost(self, what, resource, amount)
        resource, amount = next(amounts, resource)
    end
    while costs and resource ~= nil do
        costs, err = add_cost(self, what, resource, amount)
        resource, amount = next(amounts, resource)
    end
    -- What an earlier call has left there must not be taken for one more.
    self.costs.resource[self.costs.count] = nil
    return costs, err
end

-- A user's record

local function hash_of(seed, service, name, is_overflow)
    local hash = tobit(seed + service * 2 + (is_overflow and 1 or 0))
    for i = 1, #name do
        hash = tobit(hash + name:byte(i))
        hash = tobit(hash + lshift(hash, 10))
        hash = bxor(hash, rshift(hash, 6))
    end
    hash = tobit(hash + lshift(hash, 3))
    hash = bxor(hash, rshift(hash, 11))
    return tobit(hash + lshift(hash, 15))
end

local function is_of(record, service, name, is_overflow)
    return record.serial % 2 == 1
        and record.service == service
        and record.name_size == #name
        and (record.is_overflow ~= 0) == is_overflow
        and ffi.C.memcmp(record.name, name, #name) == 0
end

--- Unlock the record that is open.
function user_table:close()
    local locked = self.locked
    if locked then
        self.locked = nil
        self.memory:unlock(locked)
    end
end

local function remember_place(self, service, name, place)
    local places = self.places[service]
    if not places or self.place_count >= 2 * self.max_users then
        if self.place_count >= 2 * self.max_users then
            self.places, self.place_count = {}, 0
        end
        places = {}
        self.places[service] = places
    end
    if not places[name] then
        self.place_count = self.place_count + 1
    end
    fast_path.prepare(place)
    places[name] = place
end

--- Lock the bucket of a user and find its record. False if the lock cannot be had.
local function lock_and_find(self, service, name, is_overflow)
    self:close() -- what a call that has failed with an error may have left locked
    local places = self.places[service]
    local place = not is_overflow and places and places[name]
    if place then
        if not self.memory:lock(place.lock) then
            return false
        end
        if place.record.serial == place.serial then
            self.locked, self.bucket, self.place = place.lock, place.bucket, place
            self.service, self.name, self.is_overflow = service, name, false
            return true
        end
        self.memory:unlock(place.lock)
        places[name] = nil
        self.place_count = self.place_count - 1
    end
    local bucket = hash_of(self.shared.seed, service, name, is_overflow) % self.buckets
    if not self.memory:lock(bucket % LOCKS) then
        return false
    end
    self.locked, self.bucket, self.place = bucket % LOCKS, bucket, nil
    self.service, self.name, self.is_overflow = service, name, is_overflow
    local index = self.heads[bucket]
    while index >= 0 do
        local record = self.records[index]
        if is_of(record, service, name, is_overflow) then
            self.place = self.memory:place_of(index)
            if not is_overflow then
                remember_place(self, service, name, self.place)
            end
            break
        end
        index = record.next
    end
    return true
end

--- Copy the account of the record that is open, brought to a window.
local function read_account(self, window)
    local account = self.account
    memory.get(self.place, account)
    local user = account.user
    if user.generation == window.generation and user.window >= window.number then
        return account
    end
    if accounts.is_free(user, window) and not accounts.has_reservations(account) then
        user.state = FREE -- windows make no difference to a free user
    else
        accounts.refresh(account, window)
    end
    return account
end

local function new_account(self, window)
    accounts.init_account(self.account, window)
    accounts.refresh(self.account, window)
    return self.account
end

local function has_room(self, time)
    return self.shared.users < self.max_users and time >= self.no_memory_until
end

--- Lock a user's record and copy its account, or a new one, brought to the window at `time`.
--
-- When there is no room for one more user it is that of a record that several share. Returns the
-- account and the window; nil if the memory cannot be locked. `close` must follow.
local function open(self, service, name, time)
    local window = self.header:window_at(service, time)
    if not lock_and_find(self, service, name, false) then
        return nil
    end
    if self.place then
        return read_account(self, window), window
    end
    if not has_room(self, time) then
        self:close()
        local shared_name = "~" .. floor(stable_hash.fraction(name) * OVERFLOW_RECORDS)
        if not lock_and_find(self, service, shared_name, true) then
            return nil
        end
        if self.place then
            return read_account(self, window), window
        end
    end
    return new_account(self, window), window
end

local function is_overflow_name(name)
    return name:byte(1) == TILDE and name:find("^~%d%d?%d?$") ~= nil -- the first is quick, and rules out most
end

--- The same for a user that has a record, or the name of one that several share; nil: there is none.
local function open_existing(self, service, name, time)
    local window = self.header:window_at(service, time)
    for overflow = 0, is_overflow_name(name) and 1 or 0 do
        if lock_and_find(self, service, name, overflow == 1) then
            if self.place then
                return read_account(self, window), window
            end
            self:close()
        end
    end
    return nil
end

--- Take a free record for the user that is open; false if there is no memory for it.
local function add_record(self)
    -- The records that several share must be there when there is no room for anyone else.
    local index = self.memory:allocate(self.is_overflow and 0 or self.shared.services * OVERFLOW_RECORDS)
    if not index then
        return false
    end
    local record = self.records[index]
    record.bucket = self.bucket
    record.service = self.service
    record.is_overflow = self.is_overflow and 1 or 0
    record.name_size = #self.name
    ffi.copy(record.name, self.name, #self.name)
    record.account.count = 0
    local place = self.memory:place_of(index)
    self.memory:put(place, self.account)
    record.next = self.heads[self.bucket]
    self.heads[self.bucket] = index
    -- Last: a worker that is killed before this has added nobody. The record is lost, and is in no report.
    record.serial = (record.serial + 1) % 4294967296 -- odd: it is in use
    place.serial = record.serial
    self.place = place
    return true
end

--- Write the account back. False if there is no room for one more user, which then shares a record:
--- open it again.
local function put(self, time)
    if self.place then
        self.memory:put(self.place, self.account)
        return true
    end
    if add_record(self) then
        return true
    end
    self.no_memory_until = time + 1 -- until then new users share the overflow records
    return false
end

local function accrue(self, account, window)
    if accounts.has_allowance(account.user.state) and not accounts.accrue_allowance(account, window) then
        local service = self.header:service_name(self.service)
        accounts.accrue_allowance(account, window, stable_hash.fraction(self.node_id, service, self.name))
    end
end

-- The fast path

--- Lock a user's record if it can take the fast path. Its place, and what was published last; or nil.
local function open_current(self, service, name, time)
    self:close() -- what a call that has failed with an error may have left locked
    local places = self.places[service]
    local place = places and places[name]
    local view = place and self.header:current(time)
    if not view or not self.memory:lock(place.lock) then
        return nil
    end
    self.locked = place.lock
    if place.record.serial == place.serial and fast_path.is_current(place, view) then
        return place, view
    end
    self:close()
    return nil
end

--- Let a request of mean cost begin if its user has credit; false: `throttle` must decide.
function user_table:begin_fast(time, service, name)
    local place, view = open_current(self, service, name, time)
    if not place then
        return false
    end
    local has_begun = fast_path.begin_request(self.memory, place, view, time)
    self:close()
    return has_begun
end

--- Count what a request without a ticket has cost; false: `consume` must do it.
function user_table:finish_fast(time, service, name, amounts)
    local place = open_current(self, service, name, time)
    if not place then
        return false
    end
    local has_ended = fast_path.finish_request(self.memory, place, amounts)
    self:close()
    return has_ended
end

-- A request begins, and ends

--- Whether an answer of the leader may come in time: it is heard, and has not said that there is nothing.
local function is_worth_waiting(account, costs, window)
    return window.epoch >= 0 and window.alone_since < 0 and not admission.is_empty(account, costs, true, window)
end

--- Decide on the account that is open; what `throttle` returns.
local function decide(self, account, window, costs, can_wait, is_retry, ticket)
    local user = account.user
    accrue(self, account, window)
    local short = admission.scarcest_short(account, costs)
    local asks, retry_after
    if not is_retry then
        admission.count_arrival(user, window)
    end
    if not short or (not (can_wait or is_retry) and admission.can_float(account, costs)) then
        if short then
            user.may_float = 0
        end
        admission.begin_request(account, costs, ticket)
        asks = admission.needs_credit(account, costs, short ~= nil, false, window)
        if asks then
            admission.note_least(account, costs, window)
        end
        return true, asks
    end
    if not is_retry then
        admission.learn_costs(account, costs)
    end
    asks = admission.needs_credit(account, costs, true, can_wait, window)
    local waits = can_wait and is_worth_waiting(account, costs, window)
    admission.note_least(account, costs, window) -- what is cheaper than before is so no more after this
    if waits then
        user.has_waiting = 1
        return false, asks
    end
    admission.count_refusal(account, costs)
    if user.empty_until > window.time then
        retry_after = user.empty_until - window.time
    else
        retry_after = max(window.finish - window.time, 0)
    end
    return nil, asks, account.cells[short].resource, retry_after
end

--- Whether a request may begin; if so, its expected cost is reserved.
--
-- `costs`: what the caller expects, or nil. Returns true; false if it can wait, and an answer of the
-- leader is worth waiting for; or nil, the number of the resource that is short, and the seconds
-- until there may be more. When there is no memory to count in, no new user can pass.
function user_table:throttle(time, service, name, costs, can_wait, is_retry, ticket)
    local account, window = open(self, service, name, time)
    if not account then
        return nil, layout.REQUEST_STARTS, self.header.slot_seconds
    end
    local user = account.user
    if user.state == FREE then
        if self.place and window.number - user.changed_window > REFRESH_WINDOWS then
            user.changed_window = window.number
            put(self, time)
        end
        self:close()
        return true
    end
    local answer, asks, short, retry_after = decide(self, account, window, costs, can_wait, is_retry, ticket)
    if asks then
        user.is_asking = 1
        user.asked_at = time
    end
    local is_written = put(self, time)
    self:close()
    if is_written then
        if asks then
            self.header:push_ask(service, self.name)
        end
        return answer, short, retry_after
    end
    if self.is_overflow then
        return nil, layout.REQUEST_STARTS, self.header.slot_seconds
    end
    return self:throttle(time, service, name, costs, can_wait, is_retry, ticket) -- on a shared record
end

--- Whether all amounts have a cell: an account has a bounded number of them.
local function has_cells(account, amounts)
    for i = 0, account.count == layout.MAX_CELLS and amounts.count - 1 or -1 do
        if not accounts.find_cell(account, amounts.resource[i]) then
            return false
        end
    end
    return true
end

--- A request has ended and cost `amounts`. nil and why if it was not counted, or not all of it.
function user_table:consume(time, service, name, amounts, ticket)
    local account = open(self, service, name, time)
    if not account then
        return nil, "the memory is locked by a worker that stands still"
    end
    local is_running
    if ticket then
        is_running = ticket.count > 0
    else
        is_running = accounts.has_running_requests(account.user)
    end
    if account.user.state == FREE and not is_running then
        self:close()
        return true
    end
    admission.finish_request(account, amounts, ticket)
    local is_written = put(self, time)
    self:close()
    if not is_written then
        if self.is_overflow then
            return nil, "no memory"
        end
        return self:consume(time, service, name, amounts, ticket) -- on a shared record
    end
    if ticket then
        ticket.count = 0
    end
    if not has_cells(account, amounts) then
        return nil, "a user has at most " .. layout.MAX_CELLS .. " resources on a node"
    end
    return true
end

--- What a user has in this slot: fresh, reused, safe, newcomer, free or fallback.
function user_table:state(time, service, name)
    local account = open(self, service, name, time)
    self:close()
    return account and accounts.STATE_NAMES[account.user.state]
end

-- For the reporter

--- Write shares and a hint into the account that is open.
local function take_quota(self, account, window, shares, hint, quota)
    local user = account.user
    if next(shares) == nil then
        user.free_version = quota.version
    elseif credit.take_shares(account, shares, self.header.resource_numbers, quota.whole) then
        user.changed_window = window.number
        if not quota.whole then
            user.is_asking = 0
            user.empty_until = -1e300
        end
    end
    if hint then
        user.may_float = hint[3] and 1 or 0
        if hint[1] > 0 then
            user.is_asking = 0
            if not admission.has_cheaper(account) then -- or there may be enough for that one
                user.empty_until = quota.said_at + hint[1]
                user.empty_for_all = user.asked_waiting
            end
        end
    end
    user.generation = (window.generation - 1) % 4294967296 -- to be refreshed at the next request
end

local function put_user_quota(self, time, service, name, shares, hint, quota)
    local account, window = open_existing(self, service, name, time)
    local is_free = next(shares) == nil
    if account then
        if not (is_free and self.is_overflow) then
            take_quota(self, account, window, shares, hint, quota)
            put(self, time)
        end
    elseif not quota.whole and has_room(self, time) then -- a whole one brings records up to date
        -- Free users leave room for those with a limit.
        if is_free and self.shared.users > self.max_users / 2 then
            return
        end
        window = self.header:window_at(service, time)
        if lock_and_find(self, service, name, false) then
            accounts.init_account(self.account, window)
            take_quota(self, self.account, window, shares, hint, quota)
            put(self, time)
        end
    end
    self:close()
end

--- Write the shares and hints of a Quota into the records of a service's users.
--
-- `users`: shares by user and resource; one without shares is free as long as the limits have this
-- version. `quota`: version, whole, and said_at, its time on this host's clock.
function user_table:put_quota(time, service, users, hints, quota, pause)
    local done = 0
    for name, shares in pairs(users) do
        for resource in pairs(shares) do
            self.header:resource_number(resource)
        end
        put_user_quota(self, time, service, name, shares, hints[name], quota)
        done = done + 1
        if pause and done % PAUSE_USERS == 0 then
            pause()
        end
    end
end

--- Write what users of a service may have in this slot alone, which ends at `finish`: amounts by user
--- and resource, from a central that grants no credit.
function user_table:put_slot_shares(time, service, users, finish, pause)
    local done = 0
    for name, amounts in pairs(users) do
        local shares = {}
        for resource, amount in pairs(amounts) do
            self.header:resource_number(resource)
            shares[resource] = { 0, amount }
        end
        local account, window = open(self, service, name, time)
        if account and next(shares) and not self.is_overflow then
            local user = account.user
            credit.take_shares(account, shares, self.header.resource_numbers, false)
            credit.set_balances(account, shares, self.header.resource_numbers)
            user.changed_window = window.number
            user.is_asking = 0
            user.empty_until, user.empty_for_all = finish, 1 -- nobody can be asked for more
            user.generation = (window.generation - 1) % 4294967296
            put(self, time)
        end
        self:close()
        done = done + 1
        if pause and done % PAUSE_USERS == 0 then
            pause()
        end
    end
end

--- The part of an Ask on a user that needs credit; nil: there is no record.
function user_table:read_credit(time, service, name)
    local account, window = open_existing(self, service, name, time)
    if not account then
        return nil
    end
    local ask, is_changed = credit.make_ask(account, window, self.header)
    if is_changed then
        put(self, time)
    end
    self:close()
    return ask
end

--- Give back the credit of a user without a request for a while; with `keeps`, but for a small part.
--
-- Returns the part of an Ask that tells of it; nil if there is nothing to give back; or nil and when
-- to look again, as there was a request.
function user_table:return_credit(time, service, name, idle_seconds, keeps)
    local places = self.places[service]
    local place = places and places[name]
    if place and place.record.serial == place.serial and place.user.is_known ~= 0
        and place.user.requested_at + idle_seconds > time
    then
        return nil, place.user.requested_at + idle_seconds -- of a busy user, without taking its lock
    end
    local account, window = open_existing(self, service, name, time)
    if not account then
        return nil
    end
    local idle_at = account.user.requested_at + idle_seconds
    local ask
    if account.user.is_known ~= 0 and idle_at <= time then
        ask = credit.give_back(account, window, self.header, keeps)
        if ask then
            put(self, time)
        end
    end
    self:close()
    if account.user.is_known ~= 0 and idle_at > time then
        return nil, idle_at
    end
    return ask
end

--- Give back the credit of all users.
function user_table:return_all_credit(time, pause)
    for index = 0, self.shared.used - 1 do
        local record = self.records[index]
        if record.serial % 2 == 1 then
            self:return_credit(time, record.service, ffi.string(record.name, record.name_size), 0, false)
        end
        if pause and index % PAUSE_USERS == PAUSE_USERS - 1 then
            pause()
        end
    end
end

--- Copy a record's account as it is; false if the record has no user, or another one than `serial` says.
function user_table:read_record(index, account, serial)
    local record = self.records[index]
    local lock = record.bucket % LOCKS
    if not self.memory:lock(lock) then
        return false
    end
    local is_same = record.serial % 2 == 1 and record.bucket % LOCKS == lock
        and (not serial or record.serial == serial)
    if is_same then
        memory.get(self.memory:place_of(index), account)
    end
    self.memory:unlock(lock)
    return is_same
end

--- Write into a record what a leader has acknowledged of its totals.
function user_table:put_settled(index, totals)
    local record, account = self.records[index], self.account
    local lock = record.bucket % LOCKS
    if not self.memory:lock(lock) then
        return
    end
    if record.serial == totals.serial and record.bucket % LOCKS == lock then
        local place = self.memory:place_of(index)
        memory.get(place, account)
        for i = 0, totals.count - 1 do
            local total = totals.totals[i]
            local cell = accounts.find_cell(account, total.resource)
            if cell then
                cell.settled = math.min(total.settled, cell.consumed)
                total.stored_settled = total.settled
            end
        end
        self.memory:put(place, account)
    end
    self.memory:unlock(lock)
end

--- Remove a record without a change since a window, if that forgives nothing. Whether it is gone.
function user_table:forget(time, index, serial, since)
    local record = self.records[index]
    local window = self.header:window_at(record.service, time)
    local bucket = record.bucket
    local lock = bucket % LOCKS
    if not self.memory:lock(lock) then
        return false
    end
    self.locked = lock
    if record.serial ~= serial or record.bucket ~= bucket then
        self:close()
        return true
    end
    self.place, self.bucket, self.service = self.memory:place_of(index), bucket, record.service
    self.name = ffi.string(record.name, record.name_size)
    local account = record.account.user.changed_window < since and read_account(self, window)
    if account then
        accrue(self, account, window)
    end
    if not account or account.user.changed_window >= since or accounts.must_keep(account) then
        self:close()
        return false
    end
    record.serial = (record.serial + 1) % 4294967296 -- first: a record with a user is always found
    if self.heads[bucket] == index then
        self.heads[bucket] = record.next
    else
        local before = self.records[self.heads[bucket]]
        while before.next ~= index do
            before = self.records[before.next]
        end
        before.next = record.next
    end
    self.memory:free(index)
    self:close()
    return true
end

return user_table
