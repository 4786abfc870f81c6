-- Runs the table of cases (tests/quota/node/core/cases.json) on the core of the nginx node.
--
-- Prints a line of JSON for each case: its name, and what each step has answered.

local script, cases_path = arg[0], arg[1]
local folder = script:match("^(.*)/[^/]*$")
package.path = folder .. "/../../lua/?.lua;" .. folder .. "/?.lua;" .. package.path

local json = require "throttle.json"
local node_state = require "node_state"
local stable_hash = require "throttle.stable_hash"
local write_json = require "write_json"

local function outgoing(node, messages)
    local said = {}
    for _, message in ipairs(messages) do
        if message.ask then
            said[#said + 1] = { to = message.to, ask = write_json.object(message.ask.users) }
        else
            local lines = {}
            node.reporter:write_lines(message.report, function(service, user, resource, ...)
                lines[service] = lines[service] or {}
                lines[service][user] = lines[service][user] or {}
                lines[service][user][resource] = { ... }
            end)
            local report = message.report
            said[#said + 1] = {
                to = message.to,
                report = {
                    sequence = report.sequence,
                    epoch = report.epoch,
                    since = report.since,
                    slot = report.slot,
                    lines = write_json.object(lines),
                    leaving = report.leaving or nil,
                },
            }
        end
    end
    return write_json.array(said)
end

local actions = {}

function actions.throttle(node, step)
    local ticket = step.ticket and { count = 0, resource = {}, amount = {} } or nil
    local answer, short, retry_after =
        node:throttle(step.at, step.service, step.user, step.cost, step.can_wait, step.is_retry, ticket)
    if answer == true then
        if step.ticket then
            node.tickets[step.ticket] = ticket
        end
        return "pass"
    elseif answer == false then
        return "wait"
    end
    return { short = short, retry_after = retry_after }
end

function actions.consume(node, step)
    node:consume(step.at, step.service, step.user, step.amounts, step.ticket and node.tickets[step.ticket])
    return json.null
end

function actions.offer(node, step)
    local passed = 0
    for _ = 1, step.count do
        if node:throttle(step.at, step.service, step.user, step.amounts) == true then
            passed = passed + 1
            node:consume(step.at, step.service, step.user, step.amounts)
        end
    end
    return passed
end

function actions.receive(node, step)
    local message = step.ack or step.quota
    message.kind = step.ack and "ack" or "quota"
    for _, part in pairs(step.quota and message.services or {}) do
        part.hints = part.hints or {}
    end
    node:receive(step.at, message.central, message)
    return json.null
end

function actions.outgoing(node, step)
    return outgoing(node, node.reporter:outgoing(step.at))
end

function actions.leave(node, step)
    return outgoing(node, node.reporter:leave(step.at))
end

function actions.ask(node, step)
    for _, message in ipairs(node.reporter:outgoing(step.at)) do
        if message.ask then
            return write_json.object(message.ask.users)
        end
    end
    return json.null
end

function actions.due(node, step)
    return node.reporter:due(step.at)
end

function actions.wait_seconds(node, step)
    node.reporter:advance_to(step.at)
    return node.header:wait_seconds()
end

function actions.slot(node, step)
    node.reporter:advance_to(step.at)
    return node.reporter.slot
end

function actions.leader(node, step)
    node.reporter:advance_to(step.at)
    return { leader = node.reporter.leader or json.null, epoch = node.reporter.epoch }
end

function actions.state(node, step)
    return node:state(step.at, step.service, step.user)
end

function actions.users(node)
    return node.users.shared.users
end

function actions.fraction(_, step)
    return stable_hash.fraction(unpack(step.names))
end

local file = assert(io.open(cases_path, "rb"))
local cases = assert(json.decode(file:read("*a"))).cases
file:close()
for _, case in ipairs(cases) do
    local answers = {}
    local done, problem = pcall(function()
        local node = node_state.new(case.node)
        for _, step in ipairs(case.steps) do
            for _ = 1, step.times or 1 do
                answers[#answers + 1] = actions[step["do"]](node, step)
            end
        end
        node:close()
    end)
    print(write_json.text({
        name = case.name,
        answers = write_json.array(answers),
        problem = not done and problem or nil,
    }))
end
