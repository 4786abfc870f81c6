--- Has LuaJIT compile the fast path before the first request comes.
--
-- It compiles what a function happens to do when it is called often enough. The first requests of a
-- worker are of users that it has not met yet, and whatever they do would become the main line of the
-- compiled code, or be given up because of its loops. So the fast path is taken some hundred times here,
-- in a few milliseconds, by a user in a memory of this worker's own.

local header = require "throttle.header"
local memory = require "throttle.memory"
local reporter = require "throttle.reporter"
local user_table = require "throttle.user_table"

-- Those of the language: what nginx puts in their place is not for a worker that starts.
local create = rawget(coroutine, "_create") or coroutine.create
local resume = rawget(coroutine, "_resume") or coroutine.resume

-- Of one piece of compiled code: LuaJIT allows 500, too few for a handler with a call of `consume`.
local MAX_CONSTANTS = 4000
local REQUESTS = 400
local SERVICE, USER, CENTRAL = "warm-up", "user", "central"
local AMOUNTS = { requests = 1, traffic_up = 500, traffic_down = 5000 }
local CREDIT = { 1e9, 1e9 } -- granted, and the safe share

local warm_up = {}

--- A table of users in which one has credit.
local function make_users(now)
    local shared = assert(memory.open {
        node_id = CENTRAL, slot_seconds = 3600, max_records = 2 * user_table.OVERFLOW_RECORDS, now = now, wall = now,
    })
    local heading = header.new(shared, { lease = 3, reservation_seconds = 60 })
    local users = user_table.new(shared, heading, { node_id = CENTRAL, max_users = user_table.OVERFLOW_RECORDS })
    heading:service_number(SERVICE)
    reporter.new(users, { node_id = CENTRAL, centrals = { CENTRAL }, now = now }):receive(now, CENTRAL, {
        kind = "quota", central = CENTRAL, epoch = 1, version = 1, slot = 0, time = now, nodes = 1, whole = false,
        interval = 0.05,
        services = {
            [SERVICE] = {
                newcomers = {}, hints = {},
                users = { [USER] = { requests = CREDIT, traffic_up = CREDIT, traffic_down = CREDIT } },
            },
        },
    })
    return users
end

--- Call a function in a coroutine, as nginx calls its handlers: what is compiled ends with the call.
local function call(...)
    return select(2, assert(resume(create(...), select(2, ...))))
end

--- Requests that begin and end, one or two at a time.
local function make_requests(node)
    -- The first is alone: until it has ended, all credit is taken for the cost of one request.
    for i = 0, REQUESTS do
        for _ = 0, i % 2 do
            assert(call(node.throttle, SERVICE, USER))
        end
        for _ = 0, i % 2 do
            assert(call(node.consume, SERVICE, USER, AMOUNTS))
        end
    end
end
jit.off(make_requests) -- or its loop would be compiled, with all that it calls inside

--- Have `throttle` and `consume` of a node compiled. Whatever happens, the node is as before.
function warm_up.run(node)
    jit.opt.start("maxirconst=" .. MAX_CONSTANTS)
    local users, services, header_before, running = node.users, node.services, node.header, node.running
    local warm_users = make_users(memory.now())
    node.users, node.services, node.header = warm_users, warm_users.header.service_numbers, warm_users.header
    local done, problem = pcall(make_requests, node)
    node.users, node.services, node.header, node.running = users, services, header_before, running
    warm_users.memory:close()
    assert(done, problem)
end

return warm_up
