-- The service "front" of an nginx under test. A request says by its arguments what it does:
--
--     user, hex     who it is of; as hex for names of any bytes
--     cost, expect  what it costs, and what it is expected to cost
--     wait          how long it may wait for credit, in seconds
--     sleep         how long it takes, in seconds
--     refusal       the status of the answer if it is refused, for 429
--     parts         in how many calls of `consume` its cost is told, for 1
--
-- What was admitted and consumed is counted in a dict of its own, beside the calls of the node: what
-- reaches a central is compared with it.

local cjson = require "cjson"
local link = require "throttle.link"
local memory = require "throttle.memory"
local node = require "throttle.node"

local counts = ngx.shared.counts

local front = {}

local function user_of()
    local hex = ngx.var.arg_hex
    if hex then
        return (hex:gsub("..", function(digits)
            return string.char(tonumber(digits, 16))
        end))
    end
    return ngx.unescape_uri(ngx.var.arg_user)
end

function front.access()
    local user = user_of()
    local wait, expect = tonumber(ngx.var.arg_wait), tonumber(ngx.var.arg_expect)
    local admitted, code, message = node.throttle("front", user, {
        wait = wait,
        expect = expect and { requests = expect },
    })
    if not admitted then
        ngx.header["Retry-After"] = math.ceil(ngx.ctx.throttle_retry_after)
        ngx.status = tonumber(ngx.var.arg_refusal) or 429
        ngx.say(code, ": ", message)
        return ngx.exit(ngx.status)
    end
    counts:incr("admitted " .. user, 1, 0)
end

function front.content()
    local seconds = tonumber(ngx.var.arg_sleep)
    if seconds then
        ngx.sleep(seconds)
    end
    ngx.say(ngx.worker.pid())
end

function front.log()
    local user = user_of()
    local parts = tonumber(ngx.var.arg_parts) or 1
    local cost = (tonumber(ngx.var.arg_cost) or 1) / parts
    for _ = 2, parts do
        node.consume("front", user, { requests = cost })
    end
    if node.consume("front", user, { requests = cost }) and ngx.status == 200 then
        counts:incr("consumed " .. user, cost, 0)
    end
end

--- Consume what is no amount, for a user "wrong"; the answers, one in a line.
function front.consume_wrong()
    local amounts = {
        { requests = -1 },
        { requests = 0 / 0 },
        { requests = 1 / 0 },
        { requests = "1" },
        { requests = true },
        { requests = 1, bytes = -1 },
        { [1] = 1 },
        { [""] = 1 },
        { [("x"):rep(201)] = 1 },
        { ["\255"] = 1 },
        "1",
        false,
    }
    for _, amount in ipairs(amounts) do
        local done, problem = node.consume("front", "wrong", amount)
        ngx.say(tostring(done), " ", tostring(problem))
    end
end

--- Begin and end a request of each of many users, as fast as it goes.
function front.serve_many()
    local users = tonumber(ngx.var.arg_users)
    local passed = 0
    for number = 1, users do
        local user = "many-" .. number
        if node.throttle("front", user, { wait = 0 }) then
            passed = passed + 1
            node.consume("front", user, { requests = 1 })
        end
    end
    ngx.say(passed)
end

--- For how long a link sleeps before it connects again and again to a central that is not there.
function front.show_delays()
    local delays, this_thread, sleep = {}, coroutine.running(), ngx.sleep
    local under_test
    rawset(ngx, "sleep", function(seconds)
        if coroutine.running() ~= this_thread then
            return sleep(seconds)
        end
        delays[#delays + 1] = seconds
        if #delays == 10 then
            under_test:stop()
        end
    end)
    under_test = link.new {
        central = { name = "ws://127.0.0.1:1", host = "127.0.0.1", port = 1 },
        node_id = node.status().node_id,
        slot_seconds = 1,
        now = memory.now,
    }
    under_test:run()
    rawset(ngx, "sleep", sleep)
    ngx.say(cjson.encode(delays))
end

function front.show_counts()
    local found = {}
    for _, key in ipairs(counts:get_keys(0)) do
        found[key] = counts:get(key)
    end
    ngx.say(cjson.encode(found))
end

function front.show_keys()
    local found = {}
    for _, key in ipairs(ngx.shared.throttle:get_keys(0)) do
        found[key] = ngx.shared.throttle:get(key)
    end
    ngx.say(cjson.encode(found))
end

function front.show_status()
    local status = node.status()
    status.pid = ngx.worker.pid()
    ngx.say(cjson.encode(status))
end

return front
