--- A node's side of the protocol with the centrals, without sockets.
--
--     outgoing -> reports and asks   to the centrals; `due` says when to call it
--     receive  <- acks and quotas    from the centrals
--
-- Reports have the totals of a slot, and go to all centrals. Asks go to the leader, within a slot:
-- users that need credit, and what others give back, at most one in the interval that the leader
-- sets. A user without a request for a tenth of a second gives back all but a small part, and that,
-- too, when the leader recalls it because others wait.
--
-- While the connection to the leader is lost, and when the leader does not answer an ask, or sends
-- nothing for two slots, the host is *alone*: users live on their safe shares until it is heard again.
--
-- The leader may have given services to other centrals. The slots are those of the leader, which says
-- in its Acks that it leads. A service is led by the central that has listed it in a Quota of this
-- epoch, and by the leader if none has. Asks go there, and when that central is away, the host is
-- alone with this service only. So it is with a service that no central lists any more, two slots
-- after a new epoch: its leader is one that the host does not reach.
--
-- All workers of a host count in one memory; one of them has this object. Beyond the memory it knows
-- which central has acknowledged what. When its worker dies, another one makes a new reporter, which
-- reports all totals again, with the same boot number: centrals book only what is new to them.
--
-- Every call is given the host's monotonic time; there is no timer and no I/O. docs/node.md specifies
-- the rules for nodes in all languages, and tests/quota/node/core/cases.json holds this one to them.
--
-- Slot numbers do not go back. When the leader's clock does, the slot holds until the clock has caught
-- up; the windows of the host go on meanwhile as if no Quota came.

local collector = require "throttle.collector"
local leading_central = require "throttle.leading_central"
local schedule = require "throttle.schedule"
local slot_clock = require "throttle.slot_clock"
local stable_hash = require "throttle.stable_hash"

local floor, huge, max, min = math.floor, math.huge, math.max, math.min

-- Without a change for so many windows a record may be forgotten.
local IDLE_WINDOWS = 120
-- If the leader's clock goes back by more slots than this, the slot follows it; else it is frozen.
local MAX_FROZEN_SLOTS = 60
-- A user gives credit back after so long without a request, and the last request's worth after this.
local IDLE_SECONDS, KEPT_SECONDS = 0.1, 30
-- Users whose credit is looked at in one go.
local MAX_CHECKS = 500
-- Three round trips and an interval are what an answer takes; workers are late by a little more.
local WAIT_SLACK, MIN_WAIT, MAX_WAIT = 0.02, 0.05, 0.3
-- The reports of many nodes are spread over this part of a slot.
local REPORT_SPREAD = 0.2
-- An original central has no epoch, and answers no asks.
local CLASSIC_EPOCH, CLASSIC_INTERVAL = 0, 3600
-- Keys of users that are kept.
local MAX_KEYS = 200000
-- Users of one Ask.
local MAX_ASKED = 1000

local reporter = {}
reporter.__index = reporter

--- One key for a service and a user. Keys are kept: a busy user needs its own many times a second.
local function key_of(self, service, user)
    local keys = self.keys[service]
    if not keys or self.key_count > MAX_KEYS then
        keys = {}
        self.keys[service] = keys
        self.key_count = 0
    end
    local key = keys[user]
    if not key then
        key = service .. "\0" .. user
        keys[user] = key
        self.key_count = self.key_count + 1
    end
    return key
end

--- `users`: a user_table. `opts`: node_id, centrals (names), boot (that of the memory, if nil), now, pause.
function reporter.new(users, opts)
    local header = users.header
    local slot_seconds, now = header.slot_seconds, opts.now
    local published = header:last_published()
    local window = header:window_at(0, now)
    local self = setmetatable({
        users = users,
        header = header,
        slot_seconds = slot_seconds,
        node_id = opts.node_id,
        centrals = opts.centrals,
        boot = opts.boot or header.shared.boot,
        pause = opts.pause,
        -- Go on where the last reporter stopped, or where the memory began.
        slot = window.slot,
        window = window.number,
        window_begin = window.begin,
        window_end = window.finish,
        epoch = published.epoch,
        has_leader_time = published.epoch >= 0,
        clock = slot_clock.new(slot_seconds, now, now + window.slot * slot_seconds - window.begin),
        leader = nil,
        service_leaders = {}, -- as Quotas of this epoch say
        epoch_heard_at = now,
        unlisted = {}, -- services with limits that no central has listed in this epoch yet
        leaderless = {}, -- those of them that count as without a leader, since when
        leading = {},
        reported_window = -1, -- the last window with a report
        has_pending_report = false, -- a window has begun, and the one before it is not reported
        collected_window = 0, -- the window up to which changes have been looked for
        report_delay = stable_hash.fraction(opts.node_id) * REPORT_SPREAD * slot_seconds,
        version = published.version > 0 and published.version - 1 or nil, -- of the limits; nil: no Quota yet
        newcomers = header:published_newcomers(), -- by service
        limited = {}, -- services with limits, and their version
        keys = {}, -- by service and user
        key_count = 0,
        nodes = 0,
        is_classic = false, -- the leader does not offer our protocol
        quota_slot = nil, -- of the newest whole Quota
        asked_at = -huge, -- when the last Ask was made
        asking = {}, -- the next Ask tells of them
        returning = {}, -- they have given back, and it is not told yet
        checks = schedule.new(), -- when to look for credit to give back
    }, reporter)
    self.collector = collector.new(users, header, {
        node_id = opts.node_id,
        boot = self.boot,
        centrals = opts.centrals,
        pause = opts.pause,
    })
    local alone_since = self.epoch < 0 and now or window.alone_since
    for _, central in ipairs(opts.centrals) do
        self.leading[central] = leading_central.new(slot_seconds, now, alone_since)
    end
    self.unknown_leader = leading_central.new(slot_seconds, now, alone_since)
    self:set_in_use()
    return self
end

-- Who leads

--- The central that leads a service; nil: it is not known.
function reporter:leader_of(service)
    return self.service_leaders[service] or self.leader
end

--- What is known of a central that leads; of whoever leads, while that is not known.
local function leading_of(self, central)
    return central and self.leading[central] or self.unknown_leader
end

--- Since when no leader of a service is heard; below 0: one is.
local function alone_since(self, service)
    local since = leading_of(self, self:leader_of(service)).alone_since
    local leaderless_since = self.leaderless[service]
    if not leaderless_since then
        return since
    end
    return since < 0 and leaderless_since or min(since, leaderless_since)
end

--- When each leader in this epoch, if it is heard, has listed its services.
local function listing_ends(self)
    return self.epoch_heard_at + leading_central.SILENT_SLOTS * self.slot_seconds
end

--- How long credit takes to come, from the request that needs it.
local function lead_seconds(self)
    return self.clock.round_trip + self.interval + 0.02
end

local function retry_seconds(self)
    return 4 * self.clock.round_trip + 3 * self.interval + 0.05
end

local function set_silent_at(self)
    local retry = retry_seconds(self)
    self.silent_at = huge
    for central in pairs(self.in_use) do
        self.silent_at = min(self.silent_at, central:silent_at(retry))
    end
    self.is_alone = self.silent_at == huge -- no leader is heard
    for service in pairs(self.unlisted) do
        if not self.leaderless[service] then
            self.silent_at = min(self.silent_at, listing_ends(self))
            break
        end
    end
end

--- Who leads may have changed, or how often to ask.
function reporter:set_in_use()
    self.in_use = { [leading_of(self, self.leader)] = true }
    for _, central in pairs(self.service_leaders) do
        self.in_use[self.leading[central]] = true
    end
    self.interval = 0
    for central in pairs(self.in_use) do
        self.interval = max(self.interval, central.interval)
    end
    set_silent_at(self)
end

--- Each service is to be listed anew. Of those that the last leader led, the new one is the leader
--- until then; the others are still where they were, for all that is known.
local function begin_epoch(self, now, epoch)
    for service in pairs(self.limited) do
        if self.unlisted[service] then
            self.leaderless[service] = self.leaderless[service] or self.epoch_heard_at
        elseif self:leader_of(service) ~= self.leader and alone_since(self, service) >= 0 then
            self.leaderless[service] = alone_since(self, service)
        end
    end
    self.unlisted = {}
    for service in pairs(self.limited) do
        if self.header:known_service(service) then
            self.unlisted[service] = true
        end
    end
    self.epoch = epoch
    self.epoch_heard_at = now
    self.leader = nil
    self.service_leaders = {}
end

--- `central` leads in `epoch`: everything, or at least some service.
local function hear(self, now, central, epoch, leads)
    self.is_classic = epoch == CLASSIC_EPOCH
    if epoch > self.epoch then
        -- Nobody will answer what another was asked: users need not wait to ask again. One that has
        -- only restarted needs a report before it can answer.
        for other, leading in pairs(self.leading) do
            if other ~= central then
                leading:move_unanswered(self.asking)
            end
        end
        self.unknown_leader:move_unanswered(self.asking)
        begin_epoch(self, now, epoch)
    end
    if leads or not self.leader then
        self.leader = central
    end
    self.leading[central]:hear(now)
end

--- Whether the leader of each service that has limits is heard.
function reporter:hears_all_leaders()
    if self.is_alone then
        return false
    end
    for service, version in pairs(self.limited) do
        -- After a change of the limits the service may have none: then nobody lists it.
        if self.header:known_service(service) and (version == self.version or self.service_leaders[service])
            and alone_since(self, service) >= 0
        then
            return false
        end
    end
    return true
end

-- The slot

--- A version of the limits as it is in the memory, where 0 is none.
local function stored_version(version)
    return version and version + 1 or 0
end

--- Whether two flat tables have the same keys and values.
local function is_same(one, other)
    for key, value in pairs(one) do
        if other[key] ~= value then
            return false
        end
    end
    for key in pairs(other) do
        if one[key] == nil then
            return false
        end
    end
    return true
end

--- Since when services are alone, where that is not what holds for those of the leader.
local function alone_services(self)
    local found = {}
    for service in pairs(self.service_leaders) do
        found[service] = alone_since(self, service)
    end
    for service in pairs(self.leaderless) do
        found[service] = alone_since(self, service)
    end
    return found
end

--- Publish what holds for all users to all workers of the host.
--
-- Users' records are refreshed when the state may be another one: by version, newcomers' shares, or
-- which leader is heard. The clock alone, which each message moves a little, is no reason.
local function publish(self)
    local wait = 3 * self.clock.round_trip + self.interval + WAIT_SLACK
    local version = stored_version(self.version)
    local alone, of_services = leading_of(self, self.leader).alone_since, alone_services(self)
    local last = self.last_state
    local is_new_state = not last or self.has_new_shares or last.version ~= version or last.alone ~= alone
        or last.epoch ~= self.epoch or not is_same(last.of_services, of_services)
    self.last_state = { version = version, alone = alone, epoch = self.epoch, of_services = of_services }
    self.has_new_shares = false
    self.header:publish {
        version = version,
        begin = self.window_begin,
        finish = self.window_end,
        slot = self.slot,
        epoch = self.epoch,
        window = self.window,
        slot_frozen = self.window_end < self.clock:begin(self.slot + 1),
        nodes = self.nodes,
        lead_seconds = lead_seconds(self),
        wait_seconds = (self.is_alone or self.is_classic) and 0 or min(max(wait, MIN_WAIT), MAX_WAIT),
        retry_seconds = retry_seconds(self),
        is_new_state = is_new_state,
        newcomers = self.newcomers,
        alone_since = alone,
        alone_services = of_services,
    }
end

local function set_window_end(self)
    self.window_end = self.clock:begin(self.slot + 1)
    if self.window_end > self.window_begin + 1.5 * self.slot_seconds then
        -- The leader's clock was set back by more than the usual wobble.
        self.window_end = self.window_begin + self.slot_seconds
    end
end

local function begin_window(self, now)
    local lived = floor((now - self.window_begin) / self.slot_seconds) + 1
    local windows
    if now >= self.clock:begin(self.slot + 1) then
        local slot = max(self.clock:slot(now), self.slot + 1) -- whatever rounding says
        -- A clock that leaps ahead mints no credit for time that nobody lived.
        windows = min(slot - self.slot, max(lived, 1))
        self.slot = slot
        self.window_begin = self.clock:begin(slot)
    else
        windows = max(lived - 1, 1)
        self.window_begin = self.window_begin + windows * self.slot_seconds
    end
    self.window = self.window + windows
    self.has_pending_report = true
    set_window_end(self)
    publish(self)
end

--- Begin a new window if it is time for one. All other calls do so first.
function reporter:advance_to(now)
    if now >= self.window_end then
        begin_window(self, now)
    end
    if now >= self.silent_at then
        local retry = retry_seconds(self)
        for central in pairs(self.in_use) do
            if now >= central:silent_at(retry) then
                central:go_away(central.heard_at, retry)
            end
        end
        if now >= listing_ends(self) then
            for service in pairs(self.unlisted) do
                self.leaderless[service] = self.leaderless[service] or self.epoch_heard_at
            end
        end
        set_silent_at(self)
        publish(self)
    end
end

--- The connection to a central has ended. What it leads is without a leader from now on.
function reporter:lose_connection(now, central)
    self:advance_to(now)
    local lost = self.leading[central]
    if lost and self.in_use[lost] and lost:is_heard() then
        lost:go_away(now, retry_seconds(self))
        set_silent_at(self)
        publish(self)
    end
end

--- Adjust the slot after a message with the leader's time.
local function follow_leader_clock(self, now)
    local slot = self.clock:slot(now)
    local had_leader_time = self.has_leader_time
    self.has_leader_time = true
    -- Until now the slots followed the node's own clock, and were in no report; or they were those of
    -- a leader whose clock was so wrong that to wait would be worse than to go back.
    if slot < self.slot and (not had_leader_time or slot < self.slot - MAX_FROZEN_SLOTS) then
        self.slot = slot
        self.window_begin = self.clock:begin(slot)
    end
    set_window_end(self)
    if now >= self.window_end then
        begin_window(self, now)
    else
        publish(self)
    end
end

-- Credit that is not needed

--- Look at `time` whether a user has credit to give back.
local function check_at(self, time, service, user)
    self.checks:add(time, key_of(self, service, user), service, user)
end

--- Give back what an idle user does not need soon, or all of it; returns when to look again, or nil.
local function return_credit(self, now, service, user, keeps)
    local ask, again = self.users:return_credit(now, self.header:known_service(service), user, IDLE_SECONDS, keeps)
    if ask then
        self.returning[key_of(self, service, user)] = { service = service, user = user, ask = ask }
    end
    return again
end

local function check_credit(self, now)
    for _ = 1, MAX_CHECKS do
        if self.checks:first() > now then
            return
        end
        local check = self.checks:pop()
        local again
        if leading_of(self, self:leader_of(check.service)):is_heard() then
            again = return_credit(self, now, check.service, check.user, true)
        else
            again = now + self.slot_seconds
        end
        if again then
            check_at(self, again, check.service, check.user)
        end
    end
end

-- Messages from centrals

local function receive_ack(self, now, central, ack)
    if ack.boot ~= self.boot then
        return
    end
    local leads = ack.leads and ack.epoch >= self.epoch
    if leads then
        hear(self, now, central, ack.epoch, true)
        self:set_in_use()
        if ack.sent <= now then
            self.clock:sample(ack.epoch, ack.sent, ack.time, now)
            follow_leader_clock(self, now)
        end
    end
    self.collector:acknowledge(central, ack.sequence, leads)
end

--- Whether a user of the service may have a limit. A user's own entry gives shares alone.
function reporter.has_limits(part)
    if next(part.newcomers) then
        return true
    end
    for _, shares in pairs(part.users) do
        if next(shares) then
            return true
        end
    end
    return false
end

--- Write the grants into the records. What comes twice or late changes nothing.
local function apply_quota(self, now, quota)
    local terms = {
        version = stored_version(self.version),
        whole = quota.whole,
        -- By the leader's clock a wait could end before it begins, if the clock stepped.
        said_at = min(now, quota.time - self.clock.offset),
    }
    for service, part in pairs(quota.services) do
        local number = self.header:known_service(service)
        if number then -- the others are not served here
            self.users:put_quota(now, number, part.users, part.hints, terms, self.pause)
            if not quota.whole then
                for user, shares in pairs(part.users) do
                    if next(shares) then
                        check_at(self, now + IDLE_SECONDS, service, user)
                    end
                end
                for user, hint in pairs(part.hints) do
                    if hint[2] then
                        return_credit(self, now, service, user, false)
                    end
                end
            end
        end
    end
    self.header:count_answer()
end

--- The services of a Quota are led by its sender.
local function list_services(self, central, quota)
    for service, part in pairs(quota.services) do
        local before = self:leader_of(service)
        if before ~= central then
            leading_of(self, before):move_unanswered(self.asking, service)
        end
        self.service_leaders[service] = central
        if reporter.has_limits(part) then
            self.limited[service] = quota.version
        elseif quota.whole then
            self.limited[service] = nil
        end
        self.unlisted[service] = nil
        self.leaderless[service] = nil
    end
end

local function receive_quota(self, now, central, quota)
    if quota.epoch < self.epoch then
        return
    end
    hear(self, now, central, quota.epoch, false)
    list_services(self, central, quota)
    local leading = self.leading[central]
    local is_newest = quota.epoch > leading.newest_epoch
        or (quota.epoch == leading.newest_epoch and quota.time >= leading.newest_time)
    if is_newest then
        leading.newest_epoch, leading.newest_time = quota.epoch, quota.time
        leading.interval = quota.interval
        self.nodes = quota.nodes
        self.version = quota.version
        for service, part in pairs(quota.services) do
            if not self.newcomers[service] or not is_same(self.newcomers[service], part.newcomers) then
                self.newcomers[service] = part.newcomers
                self.has_new_shares = true
            end
        end
    end
    self:set_in_use()
    self.clock:hint(quota.epoch, quota.time, now)
    follow_leader_clock(self, now)
    if not is_newest and quota.version ~= self.version then
        return -- it was overtaken by one with other limits
    end
    if quota.whole then
        self.quota_slot = max(self.quota_slot or 0, quota.slot)
    end
    apply_quota(self, now, quota)
end

--- The shares of the slot that has begun have come from a central that does not offer our protocol:
--- service -> user -> resource -> amount. A leader that offers it has the say, once it was heard.
function reporter:receive_classic(now, central, services)
    self:advance_to(now)
    if self.epoch > CLASSIC_EPOCH then
        return
    end
    hear(self, now, central, CLASSIC_EPOCH, true)
    self.leading[central].interval = CLASSIC_INTERVAL
    self:set_in_use()
    publish(self)
    for service, users in pairs(services) do
        local number = self.header:known_service(service)
        if number then
            self.users:put_slot_shares(now, number, users, self.window_end, self.pause)
        end
    end
    self.header:count_answer()
end

--- A message has come from a central.
function reporter:receive(now, central, message)
    self:advance_to(now)
    if message.kind == "quota" then
        receive_quota(self, now, central, message)
    else
        receive_ack(self, now, central, message)
    end
end

-- Messages to centrals

local function make_reports(self, now, slot, leaving)
    local window = leaving and self.window + 1 or self.window
    self.collector:collect(window, self.collected_window, function(service, user)
        check_at(self, now + IDLE_SECONDS, service, user)
    end)
    self.collected_window, self.collected_slot = window, slot
    self.has_pending_report = false
    local reports = self.collector:make_reports(slot, self.epoch, leaving)
    self.collector:put_settled()
    return reports
end

local function forget_idle_users(self, now)
    self.collector:visit_idle(function(index, totals, service, user)
        local since = totals.changed_window + 1
        if self.window - since >= KEPT_SECONDS / self.slot_seconds then
            return_credit(self, now, service, user, false)
        end
        return self.window - since >= IDLE_WINDOWS and self.users:forget(now, index, totals.serial, since)
    end)
end

--- What to ask and tell: by leader (false: nobody knows who leads), the users of an Ask.
local function take_asks(self, now)
    local asks = self.returning
    local many = 0
    local later = {}
    for key, user in pairs(self.asking) do
        many = many + 1
        if many > MAX_ASKED then
            later[key] = user
        else
            local ask = self.users:read_credit(now, self.header:known_service(user.service), user.user)
            if ask then
                asks[key] = { service = user.service, user = user.user, ask = ask }
            end
        end
    end
    self.returning, self.asking = {}, later
    local by_leader = {}
    for key, each in pairs(asks) do
        local leader = self:leader_of(each.service) or false
        local part = by_leader[leader]
        if not part then
            part = { users = {}, unanswered = {} }
            by_leader[leader] = part
        end
        part.users[each.service] = part.users[each.service] or {}
        part.users[each.service][each.user] = each.ask
        if each.ask.requests > 0 then -- one that only tells something is not answered
            part.unanswered[key] = { service = each.service, user = each.user }
        end
    end
    return by_leader
end

local function take_due_asks(self, now)
    local messages = {}
    for _, user in ipairs(self.header:take_asks()) do
        self.asking[key_of(self, user.service, user.user)] = user
    end
    if now < self.asked_at + self.interval or not (next(self.asking) or next(self.returning)) then
        return messages
    end
    self.asked_at = now
    for leader, part in pairs(take_asks(self, now)) do
        local ask = { node = self.node_id, boot = self.boot, sent = now, users = part.users }
        for _, central in ipairs(leader and { leader } or self.centrals) do
            messages[#messages + 1] = { to = central, ask = ask }
        end
        leading_of(self, leader):ask(now, part.unanswered)
    end
    set_silent_at(self)
    return messages
end

--- Whether it is time for the reports of a slot.
function reporter:is_report_due(now)
    self:advance_to(now)
    return self.reported_window < 0
        or (self.reported_window < self.window and now >= self.window_begin + self.report_delay)
end

--- The reports of the slot that has ended: an array of {to, report}. `write_lines` tells the lines of
--- each, until the next call.
function reporter:outgoing_reports(now)
    self.reported_window = self.window
    local reports = make_reports(self, now, self.slot - 1, false)
    forget_idle_users(self, now)
    return reports
end

--- The asks that are due: an array of {to, ask}.
function reporter:outgoing_asks(now)
    self:advance_to(now)
    if not self.is_alone then
        check_credit(self, now)
    end
    return take_due_asks(self, now)
end

--- All that is to be sent now, reports first.
function reporter:outgoing(now)
    local messages = self:is_report_due(now) and self:outgoing_reports(now) or {}
    for _, ask in ipairs(self:outgoing_asks(now)) do
        messages[#messages + 1] = ask
    end
    return messages
end

--- The sequence that a central has acknowledged last.
function reporter:acknowledged(central)
    return self.collector.acknowledged[central]
end

--- Tell the lines of a report: see `collector.write_lines`.
function reporter:write_lines(report, add)
    self.collector:write_lines(report, add)
end

--- Call `visit(slot, service, user, resource, consumed, rejected)` for what was used in the slot that
--- was collected last.
function reporter:each_usage(visit)
    local slot = self.collected_slot
    self.collector:each_usage(function(...)
        visit(slot, ...)
    end)
end

--- When to call `outgoing` next, at the latest; `now` if it has messages already.
function reporter:due(now)
    if self.reported_window < 0 then
        return now
    end
    local begin = self.reported_window < self.window and self.window_begin or self.window_end
    local due = begin + self.report_delay
    if not self.is_alone then
        due = min(due, self.silent_at, self.checks:first())
    end
    if self.header:has_asks() or next(self.asking) or next(self.returning) then
        due = min(due, self.asked_at + self.interval)
    end
    return max(now, due)
end

--- From when on the next Ask may be sent.
function reporter:can_ask_at()
    return self.asked_at + self.interval
end

--- The last reports: the node stops, and hands back what it was promised.
function reporter:leave(now)
    self:advance_to(now)
    if self.has_pending_report then
        self.collector:skip_report() -- what it would have told is in this one
    end
    return make_reports(self, now, self.slot, true)
end

--- The last reports were acknowledged, as far as they ever will be. Centrals forget a node that has
--- left, and take its credit back. When nginx is started again, and finds this memory, they book what
--- is not settled in it; and what was granted before must not be spent.
function reporter:end_leave(now)
    self.collector:put_settled()
    self.users:return_all_credit(now, self.pause)
end

return reporter
