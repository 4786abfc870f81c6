--- Reports to the centrals and fetches quotas, from one worker at a time.
--
-- Every worker has a timer that tries for the host's lock; the one that has it runs the reporter and
-- a link to each central, until it exits or dies. The lock is the kernel's and ends with the worker,
-- however it ends. Then another worker has it at its next try, and goes on from the memory: totals
-- are cumulative, so nothing is lost and nothing counted twice. At a reload the old worker hands it
-- over at once. The last worker that exits says that the node leaves, so that its credit goes back to
-- the others: when its requests have ended, for their cost is in the last report. A worker that did
-- not report connects for it.
--
-- Long work is cut into pieces of about a millisecond (`pause`), between which requests of this
-- worker, and messages of centrals, have their turn.

local semaphore = require "ngx.semaphore"
local classic = require "throttle.classic"
local link = require "throttle.link"
local memory = require "throttle.memory"
local options = require "throttle.options"
local protocol = require "throttle.protocol"
local reporter = require "throttle.reporter"
local usage_keys = require "throttle.usage_keys"

local max, min, random = math.max, math.min, math.random

-- Between two tries for the lock.
local LOCK_SECONDS = 0.1
-- Between two looks for users that another worker has noted.
local POLL_SECONDS = 0.005
local RETRY_SECONDS = 1
local LEAVE_SECONDS = 2
-- For which a worker that exits waits for the ends of its requests.
local RUNNING_SECONDS = 10
-- Between two calls of get_central_ips.
local LOOK_UP_SECONDS = 10
-- A leader that is away for less is not worth a line in the log.
local LOGGED_SECONDS = 2

local communicate = {}

local function now()
    return memory.now()
end

local function find_centrals(opts)
    if not opts.get_central_ips then
        return opts.centrals
    end
    local done, list = pcall(opts.get_central_ips)
    if not done then
        return nil, "get_central_ips has failed: " .. tostring(list)
    end
    return options.try_centrals(list, opts.central_port, opts.tls)
end

local function names_of(centrals)
    local names = {}
    for i, central in ipairs(centrals) do
        names[i] = central.name
    end
    table.sort(names) -- name servers tell addresses in turn: another order is no change
    return names
end

--- The state of one run of the reporter in this worker.
local session = {}
session.__index = session

function session.new(node, centrals)
    local self = setmetatable({
        node = node,
        centrals = centrals,
        links = {},
        classic = {}, -- by central: of those that do not offer our protocol
        reports = {}, -- of the last slot
        has_work = semaphore.new(),
        is_over = false, -- another worker may report by now
        missing_since = nil,
        looked_up_at = now(),
    }, session)
    local function pause()
        self:pause()
    end
    self.reporter = reporter.new(node.users, {
        node_id = node.options.node_id,
        centrals = names_of(centrals),
        now = now(),
        pause = pause,
    })
    self.usage = node.dict and usage_keys.new(node.dict, node.header.slot_seconds)
    for _, central in ipairs(centrals) do
        self.links[central.name] = link.new {
            central = central,
            node_id = node.options.node_id,
            token = node.options.token,
            slot_seconds = node.options.slot_seconds,
            now = now,
            pause = pause,
            receive = function(name, message)
                if not self.is_over then
                    self.reporter:receive(now(), name, message)
                    node.wake_waiting()
                end
            end,
            receive_classic = function(name, text)
                self.classic[name] = self.classic[name] or classic.new()
                return self.classic[name]:receive(text, pause)
            end,
            disconnected = function(name)
                if not self.is_over then
                    self.reporter:lose_connection(now(), name)
                end
            end,
        }
    end
    return self
end

--- Let requests, and messages of centrals, have their turn in the middle of long work.
function session:pause()
    ngx.sleep(0.001) -- of 0, nginx without OpenResty's patches complains
    if self.is_reporting then
        self:send_asks(self.reporter:outgoing_asks(now()))
    end
end

function session:send_asks(messages)
    for _, message in ipairs(messages) do
        self.links[message.to]:send_ask(protocol.encode_ask(message.ask))
    end
end

--- Encode each report once for all centrals that get the same lines, and queue it for sending.
function session:send_reports(messages)
    local written, by_central = {}, {}
    for _, message in ipairs(messages) do
        local report, to = message.report, message.to
        if self.links[to]:is_connected() and not self.links[to].is_classic then
            local key = report.sequence .. " " .. report.since
            if not written[key] then
                local writer = protocol.new_report(report)
                self.reporter:write_lines(report, function(...)
                    writer:add(...)
                end)
                written[key] = writer
            end
            by_central[to] = by_central[to] or {}
            table.insert(by_central[to], written[key])
        end
    end
    for central, writers in pairs(by_central) do
        self.links[central]:send_reports(writers)
    end
end

--- Report to the centrals that do not offer our protocol.
function session:send_classic_reports()
    local text, left_out
    for _, each in pairs(self.links) do
        if each:is_connected() and each.is_classic then
            if not text then
                text, left_out = classic.report(self.node.options.node_id, self.reporter.slot, function(visit)
                    self.reporter:each_usage(visit)
                end)
            end
            each:send_reports { { text = function()
                return text
            end } }
        end
    end
    if left_out and left_out > 0 then
        ngx.log(ngx.WARN, "throttle: ", left_out, " amounts did not fit into a report of the classic protocol")
    end
end

--- Put the shares into effect that an original central has sent for this slot.
function session:apply_classic_shares()
    for name, each in pairs(self.classic) do
        local shares = each:take(self.reporter.slot)
        if shares then
            self.reporter:receive_classic(now(), name, shares)
            self.node.wake_waiting()
        end
    end
end

--- Send the reports of the last slot to centrals that have connected since: without one they know
--- nothing of this node, and answer no ask.
function session:send_missed_reports()
    local missed = {}
    for _, message in ipairs(self.reports) do
        local each = self.links[message.to]
        if each:is_connected() and not each.is_told then
            missed[#missed + 1] = message
        end
    end
    if #missed > 0 then
        self:send_reports(missed)
    end
end

--- Send what is due.
function session:work()
    self:send_missed_reports()
    local time = now()
    if time < self.reporter:due(time) and not self.node.header:has_many_asks() then
        return
    end
    if self.reporter:is_report_due(time) then
        self.is_reporting = true
        self.reports = self.reporter:outgoing_reports(time)
        self:send_reports(self.reports)
        self:send_classic_reports()
        self.is_reporting = false
        if self.usage then
            self.usage:publish(self.reporter)
        end
    end
    self:send_asks(self.reporter:outgoing_asks(now()))
end

--- A request of this worker has noted that a user needs credit.
function session:wake()
    if self.has_work:count() < 0 and now() >= self.reporter:can_ask_at() then
        self.has_work:post()
    end
end

function session:log_missing_leader()
    local is_heard = self.reporter:hears_all_leaders()
    if is_heard then
        if self.is_missing_logged then
            ngx.log(ngx.WARN, "throttle: leader ", self.reporter.leader, " is heard, epoch ", self.reporter.epoch)
        end
        self.missing_since, self.is_missing_logged = nil, false
        return
    end
    self.missing_since = self.missing_since or now()
    if not self.is_missing_logged and now() - self.missing_since >= LOGGED_SECONDS then
        self.is_missing_logged = true
        ngx.log(ngx.ERR, "throttle: no leader is heard: users live on ",
            self.reporter.epoch < 0 and "the fallback" or "their safe shares")
    end
end

--- Whether get_central_ips names other centrals than those of this session.
function session:has_other_centrals()
    if not self.node.options.get_central_ips or now() - self.looked_up_at < LOOK_UP_SECONDS then
        return false
    end
    self.looked_up_at = now()
    local centrals = find_centrals(self.node.options)
    if not centrals then
        return false
    end
    return table.concat(names_of(centrals), " ") ~= table.concat(names_of(self.centrals), " ")
end

--- Wait until each central is connected or cannot be reached; once one is, not for long.
function session:wait_for_links()
    local deadline = now() + LEAVE_SECONDS
    while now() < deadline do
        local is_tried = true
        for _, each in pairs(self.links) do
            is_tried = is_tried and (each:is_connected() or each.has_failed)
            if each:is_connected() then
                deadline = min(deadline, now() + LOCK_SECONDS)
            end
        end
        if is_tried then
            return
        end
        ngx.sleep(0.01)
    end
end

--- Send the last reports, and wait until the centrals that are connected have booked them.
function session:leave()
    self:wait_for_links()
    local reports = self.reporter:leave(now())
    self:send_reports(reports)
    local last = reports[#reports].report.sequence
    local deadline = now() + LEAVE_SECONDS
    local is_booked
    repeat
        ngx.sleep(0.01)
        is_booked = true
        for name, each in pairs(self.links) do
            if each:is_connected() and not each.is_classic then
                is_booked = is_booked and self.reporter:acknowledged(name) >= last
            end
        end
    until is_booked or now() > deadline
    self.reporter:end_leave(now())
end

--- Talk to the centrals until this worker exits, or they are others. Then `release` is called, and
--- nothing is done for the node any more. `is_last` says whether no other worker is left.
function session:run(is_last, release)
    local threads = {}
    for _, each in pairs(self.links) do
        threads[#threads + 1] = ngx.thread.spawn(each.run, each)
    end
    local done, err = pcall(function()
        while not ngx.worker.exiting() and not self:has_other_centrals() do
            self:work()
            self:apply_classic_shares()
            self:log_missing_leader()
            local time = now()
            self.has_work:wait(min(max(self.reporter:due(time) - time, 0.001), POLL_SECONDS))
        end
        if ngx.worker.exiting() and is_last() then
            self:leave()
        end
    end)
    self.is_over = true
    release() -- before the connections end: a central may take long over that
    for _, each in pairs(self.links) do
        each:stop()
    end
    for _, thread in ipairs(threads) do
        ngx.thread.wait(thread)
    end
    if not done then
        error(err, 0)
    end
end

--- Give up the presence of a worker that exits. Whether no other one is present: then it is to leave.
local function is_last_worker(worker)
    local presence = worker.presence
    worker.presence = nil
    -- The lock is kept until the worker exits, or two could take themselves for the last.
    return presence ~= nil and memory.is_last(presence)
end

--- Be the reporter, if no other worker is, until this one exits. Whether it was, and what has failed.
--- `is_last` says whether it is to leave then.
local function report(node, is_last)
    local lock, err = memory.try_file_lock(node.memory.path .. ".lock")
    if not lock then
        return false, err
    end
    local function release()
        if lock then
            node.on_ask, node.is_reporting = false, false
            memory.release_file_lock(lock)
            lock = nil
        end
    end
    local done, problem = pcall(function()
        local centrals, failure = find_centrals(node.options)
        if not centrals then
            error(failure, 0)
        end
        local running = session.new(node, centrals)
        node.on_ask = function()
            running:wake()
        end
        node.is_reporting = true
        running:run(is_last, release)
    end)
    release()
    return true, not done and problem or nil
end

--- The worker exits: when its requests have ended, and no other worker is left, say that the node leaves.
local function leave_if_last(node, worker)
    local deadline = now() + RUNNING_SECONDS
    while node.running > 0 and now() < deadline do
        ngx.sleep(0.02)
    end
    if not is_last_worker(worker) then
        return
    end
    deadline = now() + LEAVE_SECONDS
    local is_done, problem
    repeat -- the one that has reported may be about to release the lock
        is_done, problem = report(node, function()
            return true
        end)
        if not is_done then
            ngx.sleep(0.02)
        end
    until is_done or problem or now() > deadline
    if problem then
        ngx.log(ngx.ERR, "throttle: the last report has failed: ", problem)
    end
end

local function be_present(node, worker)
    worker.presence = memory.try_file_lock(node.memory.path .. ".workers", true)
end

--- Be present as soon as the last worker of an nginx before this one has left.
local function wait_to_be_present(node, worker)
    while not worker.presence and not ngx.worker.exiting() do
        ngx.sleep(LOCK_SECONDS)
        be_present(node, worker)
    end
end

local function run(premature, node, worker)
    if premature then
        return
    end
    ngx.thread.spawn(wait_to_be_present, node, worker)
    while not ngx.worker.exiting() do
        local _, problem = report(node, function()
            return node.running == 0 and is_last_worker(worker)
        end)
        if problem then
            ngx.log(ngx.ERR, "throttle: reporting has failed, and is tried again in ", RETRY_SECONDS, " s: ", problem)
        end
        local wait = problem and RETRY_SECONDS or LOCK_SECONDS * (1 + random())
        while wait > 0 and not ngx.worker.exiting() do
            ngx.sleep(max(min(wait, LOCK_SECONDS), 0.001))
            wait = wait - LOCK_SECONDS
        end
    end
    leave_if_last(node, worker)
end

--- Begin to report and fetch in this worker: called by `node.init`.
function communicate.init_report_and_fetch(node)
    node = node or require "throttle.node"
    local worker = { presence = nil } -- a lock that is held until this worker exits
    be_present(node, worker) -- at once: at a reload the old workers exit soon
    local started, err = ngx.timer.at(0, run, node, worker)
    if not started then
        ngx.log(ngx.ERR, "throttle: cannot start the timer that reports: ", err)
    end
    return started, err
end

return communicate
