--- The end node of nginx: whether a request may begin, and what it has cost.
--
--     init_worker_by_lua_block   node.init { active_services = { "front" }, centrals = { "10.0.0.1" }, ... }
--     access_by_lua_block        local ok, code, message = node.throttle("front", user)
--     log_by_lua_block           node.consume("front", user, { requests = 1, traffic_down = bytes })
--
-- All workers count in one memory and see every count at once: there is nothing that a worker has not
-- seen yet. A decision takes some microseconds and asks nobody. One worker at a time talks to the
-- centrals (`communicate.lua`).
--
-- A node that could not be initialised lets requests pass and logs why, at most once in ten seconds.
-- Wrong arguments are faults of the configuration and are raised: an unknown service or a user that is
-- no string is seen at the first request.
--
-- A request that finds no credit waits for one answer of the leader, some 50 to 300 ms at most, on a
-- semaphore: the worker serves others meanwhile.

local semaphore = require "ngx.semaphore"
local header = require "throttle.header"
local memory = require "throttle.memory"
local options = require "throttle.options"
local protocol = require "throttle.protocol"
local user_table = require "throttle.user_table"
local warm_up = require "throttle.warm_up"

local floor, max, min = math.floor, math.max, math.min

local LOG_SECONDS = 10
-- Between two looks for an answer that another worker has received.
local POLL_SECONDS = 0.002
local LEASE_SLOTS, RESERVATION_SECONDS = 3, 60

-- All fields are here from the start: LuaJIT compiles where in this table a field is.
local node = {
    users = false, -- false: not initialised, or that has failed
    services = {}, -- the number of each active service
    header = false,
    memory = false,
    options = false,
    dict = false, -- the lua_shared_dict, if there is one
    on_ask = false, -- called when this worker has noted that a user needs credit
    is_reporting = false, -- whether this worker talks to the centrals
    running = 0, -- requests of this worker that have begun and not ended
}

-- Requests of this worker that wait, each on a semaphore of its own: of one that they share, the first
-- to wake up and to wait again would take what is meant for the others.
local waiting = {}
local waiting_count = 0
local waiting_until = 0 -- the last deadline of those that wait
local is_watching = false
-- Whether this worker has ever refused a request, or let one wait: until then `consume` need not look
-- whether its own was let pass.
local has_refused = false
local logged_at = {} -- by kind of fault
local failure -- why the node is not initialised

protocol.set_md5(ngx.md5)

--- Log a fault, at most once in ten seconds for each kind.
local function log_fault(kind, message)
    local now = ngx.now()
    if now - (logged_at[kind] or -LOG_SECONDS) >= LOG_SECONDS then
        logged_at[kind] = now
        ngx.log(ngx.ERR, "throttle: ", message)
    end
end

local function memory_path(opts)
    if opts.memory and opts.memory:find("/", 1, true) then
        return opts.memory
    end
    local name = opts.memory or opts.node_id
    local plain = name:gsub("[^%w._-]", "_"):sub(1, 60)
    if plain ~= name then
        plain = plain .. "-" .. ngx.md5(name):sub(1, 8)
    end
    return "/dev/shm/sluicegate-" .. memory.user_id() .. "-nginx-" .. plain
end

local function open_memory(opts)
    local max_records = floor(opts.max_users) + #opts.services * user_table.OVERFLOW_RECORDS
    return memory.open {
        path = memory_path(opts),
        node_id = opts.node_id,
        slot_seconds = opts.slot_seconds,
        max_records = max_records,
        now = memory.now(),
        wall = memory.wall(),
    }
end

local function start(opts)
    local shared, err = open_memory(opts)
    if not shared then
        return nil, err
    end
    local heading = header.new(shared, {
        lease = LEASE_SLOTS,
        reservation_seconds = RESERVATION_SECONDS,
        fallback = opts.fallback,
    })
    node.services = {}
    for _, service in ipairs(opts.services) do
        local number, problem = heading:service_number(service)
        if not number then
            return nil, problem
        end
        node.services[service] = number
    end
    node.memory, node.header, node.options = shared, heading, opts
    node.users = user_table.new(shared, heading, { node_id = opts.node_id, max_users = opts.max_users })
    node.dict = opts.shared_dict_name and ngx.shared[opts.shared_dict_name] or false
    if opts.shared_dict_name and not node.dict then
        ngx.log(ngx.ERR, "throttle: there is no lua_shared_dict ", opts.shared_dict_name,
            ": limits hold without it, but nobody can look at the counters there")
    end
    return true
end

--- Initialise the node in this worker, and begin to report: to be called in init_worker_by_lua.
--- True, or nil and what is wrong, which is also logged.
function node.init(opts)
    local checked, err = options.check(opts)
    local done = checked
    if checked then
        done, err = start(checked)
    end
    if not done then
        failure = err
        node.users = false
        ngx.log(ngx.ERR, "throttle: not initialised, so nothing is limited: ", err)
        return nil, err
    end
    failure = nil
    local is_warm, problem = pcall(warm_up.run, node)
    if not is_warm then
        ngx.log(ngx.WARN, "throttle: the first requests are slower than they need be: ", problem)
    end
    require("throttle.communicate").init_report_and_fetch(node)
    return true
end

--- Requests that wait may find now what they wait for.
function node.wake_waiting()
    for each in pairs(waiting) do
        if each:count() < 1 then
            each:post()
        end
    end
end

--- Wake waiting requests of this worker when another worker has received an answer.
local function watch(premature)
    local seen = node.header:news()
    while waiting_count > 0 and not premature do
        if memory.now() > waiting_until + 1 then
            waiting, waiting_count = {}, 0 -- requests were aborted while they waited
            break
        end
        ngx.sleep(POLL_SECONDS)
        local news = node.header:news()
        if news ~= seen then
            seen = news
            node.wake_waiting()
        end
    end
    is_watching = false
end

local function check_user(service, user)
    local number = node.services[service]
    if not number then
        error("throttle: service must be one of active_services, got " .. tostring(service), 3)
    end
    if type(user) ~= "string" or user == "" then
        error("throttle: user must be a string that is not empty, got " .. tostring(user), 3)
    end
    -- Those whose record was found before are names as they are on the wire.
    local places = node.users.places[number]
    if places and places[user] then
        return number, user
    end
    return number, protocol.utf8_name(user)
end

--- Try again whenever an answer has come, for the last time at the deadline.
local function wait_for_answer(number, name, costs, seconds)
    local deadline = memory.now() + seconds
    local answered = semaphore.new()
    waiting[answered] = true
    waiting_count = waiting_count + 1
    waiting_until = max(waiting_until, deadline)
    if not is_watching then
        is_watching = ngx.timer.at(0, watch) and true or false
    end
    local answer, short, retry_after
    repeat
        local left = deadline - memory.now()
        local can_wait = left > 0
        if can_wait then
            answered:wait(max(left, 0.001))
        end
        local expected = costs and node.users:parse_costs("expect", costs) or nil
        answer, short, retry_after = node.users:throttle(memory.now(), number, name, expected, can_wait, true)
    until answer ~= false
    if waiting[answered] then
        waiting[answered] = nil
        waiting_count = waiting_count - 1
    end
    return answer, short, retry_after
end

--- `consume` counts nothing for this request.
local function mark_refused()
    has_refused = true
    ngx.ctx.throttle_refused = true
end

local function refuse(service, user, short, retry_after)
    local resource = node.header:resource_name(short)
    mark_refused()
    ngx.ctx.throttle_retry_after = retry_after
    return nil, "Throttled", ("user '%s' of service '%s' has used up its '%s' quota, retry in %.3g s"):format(
        user, service, resource, retry_after)
end

--- What `throttle` does for a request that cannot take the fast path.
local function throttle_fully(service, user, opts)
    if not node.users then
        log_fault("init", "not initialised, so nothing is limited: " .. tostring(failure or "call init first"))
        return true
    end
    local number, name = check_user(service, user)
    local costs, err
    local expect, wait = opts and opts.expect, opts and opts.wait
    if expect then
        costs, err = node.users:parse_costs("expect", expect)
        if not costs then
            error("throttle: " .. err, 3)
        end
    end
    local answer, short, retry_after = node.users:throttle(memory.now(), number, name, costs, wait ~= 0, false)
    if node.on_ask and node.header:has_asks() then
        node.on_ask()
    end
    if answer == false then
        local seconds = node.header:wait_seconds()
        mark_refused() -- if its client goes away while it waits, nginx ends it here
        answer, short, retry_after = wait_for_answer(number, name, expect, wait and min(wait, seconds) or seconds)
        ngx.ctx.throttle_refused = nil
    end
    if answer then
        node.running = node.running + 1
        return true
    end
    return refuse(service, user, short, retry_after)
end
jit.off(throttle_fully) -- so that the fast path is the main line of what is compiled: see warm_up.lua

--- Whether a request may begin. If so, its expected cost is reserved until `consume`.
--
-- Returns true; or nil, "Throttled" and a message that names the resource, with the seconds until
-- there may be more in `ngx.ctx.throttle_retry_after`.
--
-- `opts`, all optional: expect, amounts by resource that the request is expected to cost (else the
-- mean of the user's last requests; a resource that is left out is not used); wait, for how many
-- seconds at most it waits for an answer of the leader (else for as long as one takes).
function node.throttle(service, user, opts)
    local users = node.users
    local number = node.services[service]
    if users and number and not (opts and opts.expect) and users:begin_fast(memory.now(), number, user) then
        node.running = node.running + 1
        if node.on_ask and node.header:has_asks() then
            node.on_ask()
        end
        return true
    end
    return throttle_fully(service, user, opts)
end

--- What `consume` does for a request that cannot take the fast path. `costs`: nil if they are invalid, for `err`.
local function consume_fully(service, user, costs, err)
    local number, name = check_user(service, user)
    local counted
    if costs then
        counted, err = node.users:consume(memory.now(), number, name, costs)
    end
    if not counted then
        log_fault("consume", ("not counted, of user '%s' of service '%s': %s"):format(user, service, err))
        return nil, err
    end
    return true
end
jit.off(consume_fully)

--- A request has ended and cost `amounts`, by resource. To be called once for each request that
--- `throttle` has let pass, in log_by_lua; of one that was refused it counts nothing.
--- True, or nil and why it was not counted, which is also logged.
function node.consume(service, user, amounts)
    local users, number = node.users, node.services[service]
    if not users then
        return nil, failure
    end
    if has_refused and ngx.ctx.throttle_refused then
        return true
    end
    node.running = max(node.running - 1, 0)
    local costs, err = users:parse_costs("consume", amounts)
    if costs and number and users:finish_fast(memory.now(), number, user, costs) then
        return true
    end
    return consume_fully(service, user, costs, err)
end

--- The state of users that the leader knows (docs/node.md); none: no leader has been heard yet.
local function state_of(window)
    if window.epoch < 0 then
        return "none"
    end
    if window.alone_since < 0 then
        return "fresh"
    end
    return window.time - window.alone_since < window.lease * window.slot_seconds and "reused" or "safe"
end

--- What this worker knows of the node, for people to look at.
function node.status()
    if not node.users then
        return { is_initialised = false, pid = ngx.worker.pid(), problem = failure }
    end
    local window = node.header:window_at(0, memory.now())
    local shared = node.header.shared
    return {
        is_initialised = true,
        pid = ngx.worker.pid(),
        node_id = node.options.node_id,
        state = state_of(window),
        slot = window.slot,
        epoch = window.epoch,
        is_alone = window.alone_since >= 0,
        users = shared.users,
        max_users = node.options.max_users,
        memory_bytes = shared.committed,
        reports = shared.sequence,
        waiting = waiting_count,
        is_reporting = node.is_reporting,
    }
end

return node
