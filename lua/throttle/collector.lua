--- The totals of a host's users, which central has acknowledged them, and the next reports.
--
-- Only the worker that reports has one. It keeps a copy of each user's totals as they were collected
-- from the memory, with the sequence of the first report that has each total's newest change. All
-- centrals get reports with the same sequences at the same time; each gets the lines that have
-- changed since the last one it has acknowledged. So a lost report or Ack costs nothing but a longer
-- next report. When another worker takes over, it begins with nothing, and tells all totals again.
--
-- What a leader has acknowledged is *settled*: an Ack stands for all sequences up to its own, whether
-- or not that central led when it booked them. The memory keeps it for the next reporter.
--
-- A frame has room for some 25,000 JSON objects and lists. What does not fit goes into further
-- reports of the same slot, as if it had changed then: an Ack of the first must not stand for it.
--
-- Passes over many users call `pause` after about a millisecond, so that requests of this worker go
-- on. Nothing is locked meanwhile; each record is copied under its own lock.

local ffi = require "ffi"
local accounts = require "throttle.accounts"
local layout = require "throttle.layout"

local min, max, huge = math.min, math.max, math.huge

ffi.cdef [[
void *calloc(size_t count, size_t size);
void free(void *);

typedef struct {
    double consumed;
    double reserved;           /* by running requests: the `held` of a report's line */
    double granted;
    double returned;
    double settled;
    double stored_settled;     /* `settled` as it is in the memory */
    double pending_consumed[4];
    uint32_t pending_sequence[4];
    uint32_t rejected;
    uint32_t requests;
    uint32_t changed_sequence; /* the first report that has the newest change */
    uint32_t first_sequence;   /* the first report that has it; 0: none yet */
    uint32_t used_window;      /* the collection that has seen `used` and `refused` */
    uint32_t refused;          /* since the collection before */
    double used;
    uint8_t pending;           /* how many of `pending_consumed` are set */
    uint8_t resource;
} throttle_total;

typedef struct {
    uint32_t serial;           /* of the record, when it was collected; 0: never */
    uint32_t changed_window;
    uint8_t count;
    uint8_t is_unsettled;      /* a leader has still something to acknowledge */
    uint8_t has_reservations;
    throttle_total totals[8];
} throttle_totals;
]]

local MAX_PENDING = 4
local IDLE_REPORTS = 120
local UNANSWERED_REPORTS = 10
local MAX_SLOTS = 1000
-- Of one report: the central takes 30,000 objects and lists, and 150,000 values, of which a line has 8.
local MAX_OBJECTS = 25000
local MAX_LINES = 14000
-- Reports of one slot.
local MAX_PARTS = 64
-- Records that are looked at, users that are collected and lines that are written in one go.
local PAUSE_RECORDS, PAUSE_USERS, PAUSE_LINES = 10000, 500, 500

local collector = {}
collector.__index = collector

local function zeroed(kind, count)
    local size = ffi.sizeof(kind)
    local address = ffi.C.calloc(count, size)
    if address == nil then
        error("no memory for the totals of " .. count .. " users")
    end
    -- Pages are there when they are written to: idle room costs nothing.
    return ffi.gc(ffi.cast(kind .. " *", address), ffi.C.free)
end

--- `opts`: node_id, boot, centrals, pause (may be nil).
function collector.new(users, header, opts)
    local self = setmetatable({
        users = users,
        header = header,
        node_id = opts.node_id,
        boot = opts.boot,
        centrals = opts.centrals,
        pause = opts.pause or function() end,
        sequence = header.shared.sequence + 1, -- of the next report
        settled = 0, -- the highest sequence that a leader has acknowledged
        settled_slot = header.shared.settled_slot, -- the slot of that report
        slots = {}, -- sequence and slot of the reports that no leader has acknowledged
        acknowledged = {},
        answered = {},
        totals = zeroed("throttle_totals", header.shared.max_records),
        changed = zeroed("uint32_t", header.shared.max_records), -- the sequence of a user's newest change
        account = accounts.new(),
        forget_next = 0,
    }, collector)
    for _, central in ipairs(opts.centrals) do
        self.acknowledged[central], self.answered[central] = 0, 0
    end
    return self
end

-- Collecting

--- The total of a resource. A new one starts with `settled` from the memory.
local function total_of(totals, resource, settled)
    for i = 0, totals.count - 1 do
        if totals.totals[i].resource == resource then
            return totals.totals[i]
        end
    end
    if totals.count == layout.MAX_CELLS then
        return nil
    end
    local total = totals.totals[totals.count]
    ffi.fill(total, ffi.sizeof("throttle_total"))
    total.resource = resource
    total.settled, total.stored_settled = settled, settled
    totals.count = totals.count + 1
    return total
end

local function set_total(total, consumed, rejected, requests, reserved, cell, sequence, window)
    if total.consumed == consumed and total.rejected == rejected and total.requests == requests
        and total.reserved == reserved and total.granted == cell.granted and total.returned == cell.returned
    then
        return false
    end
    total.used, total.refused = consumed - total.consumed, (rejected - total.rejected) % 4294967296
    total.used_window = window
    total.consumed, total.rejected, total.requests, total.reserved = consumed, rejected, requests, reserved
    total.granted, total.returned = cell.granted, cell.returned
    total.changed_sequence = sequence
    return true
end

--- Update a user's totals to those of its account as of the beginning of `window`.
--- Whether it has credit that is not used.
local function update(self, index, account, window)
    local totals, user = self.totals[index], account.user
    local has_begun = user.window >= window
    -- Requests that were never finished have died.
    local is_dead = window > user.window and window - user.window > self.header.reservation_windows
    local is_changed, has_credit, has_reservations = false, false, false
    totals.changed_window = user.changed_window
    for i = 0, account.count - 1 do
        local cell = account.cells[i]
        if cell.resource ~= layout.REQUEST_STARTS then -- beginnings are in no report
            local total = total_of(totals, cell.resource, cell.settled)
            local consumed, rejected, requests, reserved
            if has_begun then
                -- A leader may have booked more: the last report of a node that left had the present slot.
                consumed = max(cell.consumed_before, cell.settled)
                rejected, requests = cell.rejected_before, cell.requests_before
                reserved = cell.old_reserved + cell.ticketed_even + cell.ticketed_odd
            else
                consumed, rejected, requests = cell.consumed, cell.rejected, cell.requests
                reserved = is_dead and 0 or accounts.reserved_of(cell)
            end
            -- Sums of what came and went are off by rounding.
            reserved = min(max(reserved, 0), accounts.MAX_TOTAL)
            is_changed = total ~= nil
                and set_total(total, consumed, rejected, requests, reserved, cell, self.sequence, window)
                or is_changed
            has_reservations = has_reservations or reserved > 0
            has_credit = has_credit or (cell.is_limited ~= 0 and accounts.balance_of(cell) > 0)
        end
    end
    totals.has_reservations = has_reservations and 1 or 0
    if is_changed then
        self.changed[index] = self.sequence
    end
    return has_credit
end

--- Release the reservations of a user without a change for long: its requests died.
local function expire_reservations(self, index)
    local totals = self.totals[index]
    totals.has_reservations = 0
    for i = 0, totals.count - 1 do
        if totals.totals[i].reserved > 0 then
            totals.totals[i].reserved = 0
            totals.totals[i].changed_sequence = self.sequence
            self.changed[index] = self.sequence
        end
    end
end

--- Collect all users whose records have changed in window `since` or later, as of the beginning of
--- `window`. Calls `hold(service, name)` for those that have credit left.
function collector:collect(window, since, hold)
    local users, header, account = self.users, self.header, self.account
    -- The first collection of a reporter sees all totals, not those of a slot.
    self.shown_window = self.has_collected and window or nil
    self.has_collected = true
    local collected = 0
    for index = 0, header.shared.used - 1 do
        local record, totals = users.records[index], self.totals[index]
        local serial = record.serial
        if serial % 2 == 1 then
            local is_new = totals.serial ~= serial
            -- A record that was read at the very end of a window may be written late.
            if is_new or record.account.user.changed_window + 2 >= since then
                if users:read_record(index, account, serial) then
                    if is_new then
                        ffi.fill(totals, ffi.sizeof("throttle_totals"))
                        totals.serial = serial
                        self.changed[index] = self.sequence
                    end
                    if update(self, index, account, window) then
                        hold(header:service_name(record.service), ffi.string(record.name, record.name_size))
                    end
                    collected = collected + 1
                    if collected % PAUSE_USERS == 0 then
                        self.pause()
                    end
                end
            elseif totals.has_reservations ~= 0
                and window - totals.changed_window > header.reservation_windows
            then
                expire_reservations(self, index)
            end
        end
        if index % PAUSE_RECORDS == PAUSE_RECORDS - 1 then
            self.pause()
        end
    end
end

-- Reports and acknowledgements

--- Remember the `consumed` that a report carries.
local function remember_reported(total, sequence)
    if total.first_sequence == 0 then
        total.first_sequence = sequence
    end
    if total.pending == MAX_PENDING then
        -- A dropped one delays `settled`, and never makes it too large. The oldest are the next to
        -- be acknowledged, so the newest is overwritten.
        total.pending = MAX_PENDING - 1
    end
    total.pending_sequence[total.pending] = sequence
    total.pending_consumed[total.pending] = total.consumed
    total.pending = total.pending + 1
end

--- A leader has acknowledged `sequence` and all before it: update and return `settled`.
local function acknowledge_total(total, sequence)
    if total.changed_sequence <= sequence then
        total.settled = total.consumed
        total.pending = 0
    end
    local done = 0
    while done < total.pending and total.pending_sequence[done] <= sequence do
        total.settled = total.pending_consumed[done]
        done = done + 1
    end
    if done > 0 then
        for i = done, total.pending - 1 do
            total.pending_sequence[i - done] = total.pending_sequence[i]
            total.pending_consumed[i - done] = total.pending_consumed[i]
        end
        total.pending = total.pending - done
    end
    return total.settled
end

--- How many lines and JSON objects a user adds to a report since a sequence.
local function lines_since(totals, since)
    local lines = 0
    for i = 0, totals.count - 1 do
        if totals.totals[i].changed_sequence > since then
            lines = lines + 1
        end
    end
    return lines
end

--- Choose the users of report `sequence` and defer the others to the next one; whether any were.
local function choose(self, sequence, least)
    local lines, objects, has_deferred = 0, 0, false
    for index = 0, self.header.shared.used - 1 do
        if self.changed[index] > least then
            local totals = self.totals[index]
            local more = lines_since(totals, least)
            if lines + more > MAX_LINES or objects + more + 1 > MAX_OBJECTS then
                has_deferred = true
                self.changed[index] = sequence + 1
                for i = 0, totals.count - 1 do
                    if totals.totals[i].changed_sequence > least then
                        totals.totals[i].changed_sequence = sequence + 1
                    end
                end
            else
                lines, objects = lines + more, objects + more + 1
                if self.changed[index] == sequence then
                    totals.is_unsettled = 1
                    for i = 0, totals.count - 1 do
                        if totals.totals[i].changed_sequence == sequence then
                            remember_reported(totals.totals[i], sequence)
                        end
                    end
                end
            end
        end
        if index % PAUSE_RECORDS == PAUSE_RECORDS - 1 then
            self.pause()
        end
    end
    return has_deferred
end

--- The least sequence that a central has acknowledged, of those that still answer.
local function least_acknowledged(self, base)
    local least, least_of_all = huge, huge
    for _, central in ipairs(self.centrals) do
        least_of_all = min(least_of_all, base[central])
        if self.answered[central] + UNANSWERED_REPORTS >= self.sequence then
            least = min(least, base[central])
        end
    end
    return least < huge and least or least_of_all
end

--- A report is not sent. Its number is not used again.
function collector:skip_report()
    self.header.shared.sequence = self.sequence
    self.sequence = self.sequence + 1
end

--- Make the reports of a slot: an array of {to, report}, by sequence and central.
--
-- Its lines are what was collected last; `write_lines` tells them, until the next collection.
function collector:make_reports(slot, epoch, leaving)
    local base, reports = {}, {}
    for _, central in ipairs(self.centrals) do
        base[central] = self.acknowledged[central]
    end
    for _ = 1, MAX_PARTS do
        local sequence = self.sequence
        local least = least_acknowledged(self, base)
        local has_deferred = choose(self, sequence, least)
        self.sequence = sequence + 1
        self.header.shared.sequence = sequence
        if #self.slots < MAX_SLOTS then -- those that come later are known by those before
            self.slots[#self.slots + 1] = { sequence, has_deferred and slot - 1 or slot }
        end
        for _, central in ipairs(self.centrals) do
            -- A central that has not answered for long and is further behind gets the newest changes
            -- only; its Ack then says how far it is.
            local since = base[central] < least and sequence - 1 or base[central]
            reports[#reports + 1] = {
                to = central,
                report = {
                    node = self.node_id,
                    boot = self.boot,
                    sequence = sequence,
                    since = since,
                    epoch = epoch,
                    slot = slot,
                    leaving = leaving,
                    settled_slot = self.settled_slot,
                },
            }
            base[central] = sequence -- frames arrive in order, or not at all
        end
        if not has_deferred then
            break
        end
    end
    return reports
end

--- Call `add(service, user, resource, consumed, rejected, requests, settled, held, granted, returned)`
--- for each line of a report.
function collector:write_lines(report, add)
    local users, header = self.users, self.header
    local since, written = report.since, 0
    for index = 0, header.shared.used - 1 do
        local changed = self.changed[index]
        if changed > since and changed <= report.sequence then
            local totals, record = self.totals[index], users.records[index]
            if record.serial == totals.serial then
                local service = header:service_name(record.service)
                local name = ffi.string(record.name, record.name_size)
                for i = 0, totals.count - 1 do
                    local total = totals.totals[i]
                    if total.changed_sequence > since then
                        -- A central that is behind the others cannot have booked a total it never got.
                        local settled = 0
                        if since == 0 or since >= total.first_sequence then
                            settled = acknowledge_total(total, self.settled)
                        end
                        add(
                            service, name, header:resource_name(total.resource), total.consumed,
                            total.rejected, total.requests, settled, total.reserved, total.granted, total.returned
                        )
                        written = written + 1
                        if written % PAUSE_LINES == 0 then
                            self.pause()
                        end
                    end
                end
            end
        end
    end
end

--- Call `visit(service, user, resource, consumed, rejected)` for what the last collection has seen
--- since the one before.
function collector:each_usage(visit)
    local users, header, visited = self.users, self.header, 0
    for index = 0, self.shown_window and header.shared.used - 1 or -1 do
        local totals, record = self.totals[index], users.records[index]
        for i = 0, totals.serial == record.serial and totals.count - 1 or -1 do
            local total = totals.totals[i]
            if total.used_window == self.shown_window and (total.used > 0 or total.refused > 0) then
                visit(
                    header:service_name(record.service), ffi.string(record.name, record.name_size),
                    header:resource_name(total.resource), total.used, total.refused
                )
                visited = visited + 1
                if visited % PAUSE_LINES == 0 then
                    self.pause()
                end
            end
        end
    end
end

--- A central has booked `sequence`, and so all before it.
function collector:acknowledge(central, sequence, leads)
    if sequence >= self.sequence then
        return -- never sent: of another boot of this node, or invalid
    end
    self.answered[central] = self.sequence
    -- Less than before: the central was restored from a snapshot, or the Ack was overtaken; to
    -- repeat what it knows costs nothing but a longer report.
    self.acknowledged[central] = sequence
    if leads then
        self.settled = max(self.settled, sequence)
        while self.slots[1] and self.slots[1][1] <= self.settled do
            self.settled_slot = max(self.settled_slot, table.remove(self.slots, 1)[2])
        end
        self.header.shared.settled_slot = self.settled_slot
    end
end

--- Write into the memory what a leader has acknowledged, for the next reporter.
function collector:put_settled()
    local done = 0
    for index = 0, self.header.shared.used - 1 do
        local totals = self.totals[index]
        if totals.is_unsettled ~= 0 then
            local is_changed = false
            for i = 0, totals.count - 1 do
                local total = totals.totals[i]
                is_changed = acknowledge_total(total, self.settled) ~= total.stored_settled or is_changed
            end
            if is_changed then
                self.users:put_settled(index, totals)
            end
            if self.changed[index] <= self.settled then
                totals.is_unsettled = 0
            end
            done = done + 1
            if done % PAUSE_USERS == 0 then
                self.pause()
            end
        end
    end
end

--- The sequence up to which every central that still answers, and a leader, has everything.
local function known_to_all(self)
    local known = min(self.settled, self.sequence - IDLE_REPORTS)
    for _, central in ipairs(self.centrals) do
        if self.answered[central] >= self.sequence - IDLE_REPORTS then
            known = min(known, self.acknowledged[central])
        end
    end
    return known
end

--- Call `visit(index, totals, service, name)` for users without a change that every central has, of
--- at most an eighth of all records. Where it returns true the record is gone.
function collector:visit_idle(visit)
    local header, users = self.header, self.users
    local used, known = header.shared.used, known_to_all(self)
    for _ = 1, min(used, max(256, math.floor(used / 8))) do
        local index = self.forget_next % used
        self.forget_next = index + 1
        local record, totals = users.records[index], self.totals[index]
        if totals.serial ~= 0 and totals.serial == record.serial and self.changed[index] <= known then
            local service = header:service_name(record.service)
            if visit(index, totals, service, ffi.string(record.name, record.name_size)) then
                totals.serial = 0
            end
        end
    end
end

return collector
