--- The connection from a node to one central, made again whenever it ends.
--
--     send_reports(writers), send_ask(texts)   never wait: what is to be sent waits in a queue
--     run()                                    connects, sends, receives, backs off, until `stop`
--
-- Of reports that wait only those of the newest slot are sent: they stand for all before them. Asks
-- are all sent, in their order; those that are older than a slot are dropped, as their users have
-- asked again since. So a central that is away, or does not read, costs no memory and delays nothing.
--
-- A connection that ends is told at once. One on which nothing comes for some slots, though a central
-- acknowledges each report, is taken as cut. The central's close code decides how soon to connect
-- again. Each kind of failure is logged once, until a connection holds.
--
-- A cosocket belongs to the timer that made it, so all of this runs in the timer of the reporter.

local semaphore = require "ngx.semaphore"
local protocol = require "throttle.protocol"
local stable_hash = require "throttle.stable_hash"
local websocket = require "throttle.websocket"

local max, min = math.max, math.min

local SUBPROTOCOL = "sluicegate.v1"
local OPEN_SECONDS = 5
local SILENT_SLOTS, SILENT_SECONDS = 6, 6
local SHORTEST_BACKOFF, LONGEST_BACKOFF, PERMANENT_BACKOFF, HEALTHY_SECONDS = 0.1, 2, 5, 60
local MAX_QUEUED_ASKS = 64
-- Denied, a frame that the central cannot read, one that is too big, replaced by another node of this name.
local PERMANENT_CODES = { [1008] = true, [1007] = true, [1009] = true, [4001] = true }

local link = {}
link.__index = link

--- `opts`: central ({name, host, port, tls}), node_id, token, slot_seconds, now, receive(name, message),
--- receive_classic(name, text) of a central that does not offer our protocol, disconnected(name), pause.
function link.new(opts)
    return setmetatable({
        central = opts.central,
        name = opts.central.name,
        opts = opts,
        connection = nil,
        is_classic = false, -- the central does not offer our protocol
        is_stopped = false,
        reports = nil,
        is_told = false, -- a report was sent, or is about to be, on this connection
        asks = {},
        has_queued = semaphore.new(),
        next_backoff = SHORTEST_BACKOFF,
        has_failed = false, -- to connect, or to stay connected
        logged = nil, -- the failure that was logged last
    }, link)
end

function link:is_connected()
    return self.connection ~= nil
end

--- Have the reports of a slot sent: an array of `protocol.new_report`, or of anything with `text(sent)`.
function link:send_reports(writers)
    self.reports = writers
    self.is_told = true
    self.has_queued:post()
end

function link:send_ask(texts)
    if self.connection and not self.is_classic and #self.asks < MAX_QUEUED_ASKS then
        self.asks[#self.asks + 1] = { texts = texts, made = self.opts.now() }
        self.has_queued:post()
    end
end

local function send_queued(self, connection)
    local now = self.opts.now
    local reports, asks = self.reports, self.asks
    self.reports, self.asks = nil, {}
    for _, writer in ipairs(reports or {}) do
        local sent, err = connection:send_text(writer:text(now()))
        if not sent then
            return nil, err
        end
    end
    for _, ask in ipairs(asks) do
        if now() - ask.made <= self.opts.slot_seconds then
            for _, text in ipairs(ask.texts) do
                local sent, err = connection:send_text(text)
                if not sent then
                    return nil, err
                end
            end
        end
    end
    return true
end

local function send_loop(self, connection)
    while self.connection == connection do
        if self.reports or #self.asks > 0 then
            if not send_queued(self, connection) then
                return -- the one that receives notices it, too
            end
        end
        self.has_queued:wait(1)
    end
end

local function take_frame(self, payload)
    if self.is_classic then
        return self.opts.receive_classic(self.name, payload)
    end
    local message, err = protocol.decode(payload, self.opts.pause)
    if not message then
        return nil, err
    end
    self.opts.receive(self.name, message)
    return true
end

local function receive_loop(self, connection)
    local silent_after = max(SILENT_SECONDS, SILENT_SLOTS * self.opts.slot_seconds)
    while not self.is_stopped do
        local kind, payload, code, reason = connection:receive(silent_after)
        if not kind then
            if payload == "closed" then
                reason = reason ~= "" and reason or "no reason given"
                return ("%s (code %s)"):format(reason, code), PERMANENT_CODES[code]
            end
            return payload == "timeout" and ("nothing came for %g s"):format(silent_after) or payload
        end
        local received, err = take_frame(self, payload)
        if not received then
            connection:close(1007, "bad frame: " .. err)
            return "a bad frame of the central: " .. err, true
        end
        if self.logged then
            ngx.log(ngx.WARN, "throttle: central connected: ", self.name)
            self.logged = nil
        elseif not self.was_connected then
            ngx.log(ngx.NOTICE, "throttle: central connected: ", self.name)
        end
        self.was_connected = true
    end
    return "stopped"
end

local function connect(self)
    local opts = self.opts
    local headers = { ["Sluicegate-Slot-Seconds"] = tostring(opts.slot_seconds) }
    if opts.token then
        headers["Authorization"] = "Bearer " .. opts.token
    end
    return websocket.connect {
        host = self.central.host,
        port = self.central.port,
        path = "/",
        tls = self.central.tls,
        subprotocol = SUBPROTOCOL,
        headers = headers,
        timeout = OPEN_SECONDS,
    }
end

--- One connection, from its beginning to its end. Why it has ended, and whether that is permanent.
local function run_once(self)
    local connection, err = connect(self)
    if not connection then
        return err, err:find("HTTP/1.1 40[13]") ~= nil
    end
    if self.is_stopped then
        connection:close(1001, "stopping")
        return "stopped"
    end
    self.is_classic = connection.subprotocol ~= SUBPROTOCOL
    self.connection = connection
    self.is_told = self.reports ~= nil
    local sending = ngx.thread.spawn(send_loop, self, connection)
    local done, problem, is_permanent = pcall(receive_loop, self, connection)
    self.connection = nil
    self.asks = {}
    self.has_queued:post()
    connection:close(done and 1000 or 1011, "")
    ngx.thread.wait(sending)
    self.opts.disconnected(self.name)
    if not done then
        return "a fault of the node: " .. tostring(problem)
    end
    return problem, is_permanent
end

--- Connect again and again, until `stop`.
function link:run()
    while not self.is_stopped do
        local began = self.opts.now()
        local problem, is_permanent = run_once(self)
        if self.is_stopped then
            return
        end
        self.has_failed = true
        if problem ~= self.logged then
            self.logged = problem
            ngx.log(ngx.ERR, "throttle: central ", self.name, " is not connected: ", problem)
        end
        if self.opts.now() - began >= HEALTHY_SECONDS then
            self.next_backoff = SHORTEST_BACKOFF
        end
        local delay = is_permanent and PERMANENT_BACKOFF or self.next_backoff
        self.next_backoff = min(2 * delay, LONGEST_BACKOFF)
        -- math.random begins with the same number on every host: all would connect at the same moments.
        local fraction = stable_hash.fraction(self.opts.node_id, self.name, tostring(self.opts.now()))
        delay = delay * (0.5 + 0.5 * fraction)
        while delay > 0 and not self.is_stopped do
            ngx.sleep(max(min(delay, 0.1), 0.001))
            delay = delay - 0.1
        end
    end
end

--- End it. What was queued may still be sent by `run`.
function link:stop()
    self.is_stopped = true
    if self.connection then
        self.connection:close(1000, "")
    end
end

return link
