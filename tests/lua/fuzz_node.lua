-- Random requests, grants and hints at the core of the nginx node: every message that it makes can be sent.
--
-- The arguments: the first seed, and how many. Time is virtual. The leader grants odd parts of units, as
-- real rates make them, and recalls them. `protocol` refuses to write what a central would not take, and
-- then the node would not report any more. In the end the node leaves and comes back, as after a restart
-- of nginx: nothing is booked twice. Prints each seed that fails, and why.

local script, first, seeds = arg[0], tonumber(arg[1]), tonumber(arg[2])
local folder = script:match("^(.*)/[^/]*$")
package.path = folder .. "/../../lua/?.lua;" .. folder .. "/?.lua;" .. package.path

local node_state = require "node_state"
local protocol = require "throttle.protocol"
local reporter = require "throttle.reporter"

local random = math.random
local STEPS = 400
-- The requests of the last user are too large for what is ever granted: it only gives back.
local USERS, RESOURCES = { "ann", "ben", "dora" }, { "requests", "bytes" }
local TOO_LARGE = { requests = 1e9, bytes = 1e9 }

local function pick(list)
    return list[random(#list)]
end

local function amounts()
    local found = {}
    for _, resource in ipairs(RESOURCES) do
        if random() < 0.7 then
            found[resource] = random() < 0.2 and 0 or random() * 10 ^ random(-3, 4)
        end
    end
    return found
end

--- Write messages as they are sent; how much of the reports' consumption is not settled.
local function send(node, messages)
    local unsettled = 0
    for _, message in ipairs(messages) do
        if message.ask then
            protocol.encode_ask(message.ask)
        else
            local writer = protocol.new_report(message.report)
            node.reporter:write_lines(message.report, function(...)
                local _, _, _, consumed, _, _, settled = ...
                unsettled = unsettled + consumed - settled
                writer:add(...)
            end)
            writer:text(1)
        end
    end
    return unsettled
end

--- The node leaves, and its leader forgets it. The next one in this memory has nothing to be booked.
local function leave_and_come_back(node, now)
    local reports = node.reporter:leave(now)
    send(node, reports)
    node:receive(now, "central", {
        kind = "ack", central = "central", leads = true, epoch = 1, boot = 1,
        sequence = reports[#reports].report.sequence, sent = now, time = now + 900,
    })
    node.reporter:end_leave(now)
    node.reporter = reporter.new(node.users, { node_id = "node", boot = 1, centrals = { "central" }, now = now })
    local unsettled = send(node, node.reporter:outgoing(now))
    assert(unsettled == 0, "booked twice: " .. unsettled)
end

local function run(seed)
    math.randomseed(seed)
    local node = node_state.new { node_id = "node", boot = 1, centrals = { "central" }, now = 100, wall = 1000 }
    local now, sequence, granted = 100, 0, {}
    local actions = {
        function()
            local user = pick(USERS)
            local costs = user == "dora" and TOO_LARGE or random() < 0.5 and amounts() or nil
            node:throttle(now, "front", user, costs, random() < 0.5)
        end,
        function()
            local user = pick(USERS)
            if user ~= "dora" then
                node:consume(now, "front", user, amounts())
            end
        end,
        function()
            local users, hints = {}, {}
            for _, user in ipairs(USERS) do
                if random() < 0.5 then
                    users[user] = {}
                    for _, resource in ipairs(RESOURCES) do
                        local key = user .. resource
                        granted[key] = (granted[key] or 0) + random() * 10 ^ random(-3, 4)
                        users[user][resource] = { granted[key], random() }
                    end
                    hints[user] = random() < 0.5 and { random() < 0.5 and random() or 0, random() < 0.5, false } or nil
                end
            end
            node:receive(now, "central", {
                kind = "quota", central = "central", epoch = 1, version = 1, slot = 0, time = now + 900,
                nodes = 2, whole = random() < 0.2, interval = 0.05,
                services = { front = { newcomers = { requests = 1 }, users = users, hints = hints } },
            })
        end,
        function()
            for _, message in ipairs(node.reporter:outgoing(now)) do
                sequence = message.report and message.report.sequence or sequence
                send(node, { message })
            end
        end,
        function()
            node:receive(now, "central", {
                kind = "ack", central = "central", leads = true, epoch = 1, boot = 1,
                sequence = sequence, sent = now, time = now + 900,
            })
        end,
    }
    for _ = 1, STEPS do
        now = now + random() * 0.2
        pick(actions)()
    end
    leave_and_come_back(node, now)
    node:close()
end

for seed = first, first + seeds - 1 do
    local done, problem = pcall(run, seed)
    if not done then
        print(seed, problem)
    end
end
