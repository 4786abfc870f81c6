-- The fast path beside the general way: the same requests, grants and hints on two hosts, of which one
-- takes the fast path where it can. After each call both accounts have the same bytes, and the same was
-- answered.
--
-- The arguments: the first seed, and how many. Time is virtual. Prints JSON: how many calls took the fast
-- path, how many did not, and each seed that fails, with why.

local script, first, seeds = arg[0], tonumber(arg[1]), tonumber(arg[2])
local folder = script:match("^(.*)/[^/]*$")
package.path = folder .. "/../../lua/?.lua;" .. folder .. "/?.lua;" .. package.path

local ffi = require "ffi"
local node_state = require "node_state"
local write_json = require "write_json"

local random = math.random
local STEPS = 300
local USERS = { "ann", "ben" }
local RESOURCES = { "requests", "bytes", "reads", "writes", "rows", "calls" }
local counts = { fast = 0, general = 0 }

local function pick(list)
    return list[random(#list)]
end

local function amounts(most)
    local found = {}
    for i = 1, random(0, most) do
        found[RESOURCES[i]] = random() < 0.2 and 0 or random() * 10 ^ random(-3, 4)
    end
    return found
end

--- The account of a user, as it is in the memory.
local function contents(node, user)
    for index = 0, node.memory.header.used - 1 do
        local record = node.memory.records[index]
        if record.serial % 2 == 1 and ffi.string(record.name, record.name_size) == user then
            local size = ffi.sizeof("throttle_cell") * record.account.count
            return ffi.string(record.account, ffi.offsetof("throttle_account", "cells") + size)
        end
    end
end

local function throttle(general, fast, now, user)
    local number = general.header:service_number("front")
    local expected = { general.users:throttle(now, number, user, nil, true, false) }
    local found = { true }
    if fast.users:begin_fast(now, number, user) then
        counts.fast = counts.fast + 1
    else
        counts.general = counts.general + 1
        found = { fast.users:throttle(now, number, user, nil, true, false) }
    end
    for i = 1, 3 do
        assert(expected[i] == found[i], "another answer")
    end
end

local function consume(general, fast, now, user, used)
    local number = general.header:service_number("front")
    local costs = assert(general.users:parse_costs("consume", used))
    local expected = general.users:consume(now, number, user, costs)
    costs = assert(fast.users:parse_costs("consume", used))
    local is_fast = fast.users:finish_fast(now, number, user, costs)
    counts.fast = counts.fast + (is_fast and 1 or 0)
    counts.general = counts.general + (is_fast and 0 or 1)
    assert(expected == (is_fast or fast.users:consume(now, number, user, costs)), "another answer")
end

local function quota(now, granted, limited)
    local users, hints = {}, {}
    for _, user in ipairs(USERS) do
        users[user] = {}
        for i = 1, random() < 0.9 and limited or 0 do
            local key = user .. RESOURCES[i]
            granted[key] = (granted[key] or 0) + random() * 10 ^ random(-1, 5)
            users[user][RESOURCES[i]] = { granted[key], random() * 100 }
        end
        hints[user] = random() < 0.3 and { random() < 0.5 and random() or 0, random() < 0.2, random() < 0.2 } or nil
    end
    return {
        kind = "quota", central = "central", epoch = 1, version = random() < 0.9 and 1 or 2, slot = 0,
        time = now + 900, nodes = 2, whole = random() < 0.2, interval = 0.05,
        services = { front = { newcomers = { requests = 10 }, users = users, hints = hints } },
    }
end

local function run(seed)
    math.randomseed(seed)
    local options = { node_id = "node", boot = 1, centrals = { "central" }, now = 100, wall = 1000 }
    local general, fast = node_state.new(options), node_state.new(options)
    local hosts = { general, fast }
    for _, host in ipairs(hosts) do
        host.header:service_number("front")
        for _, resource in ipairs(RESOURCES) do
            host.header:resource_number(resource)
        end
    end
    local now, granted, limited = 100, {}, random(0, 6)
    for _ = 1, STEPS do
        now = now + random() * (random() < 0.1 and 2 or 0.05)
        local user, action = pick(USERS), random()
        for _, host in ipairs(hosts) do
            host.reporter:advance_to(now)
        end
        if action < 0.4 then
            throttle(general, fast, now, user)
        elseif action < 0.75 then
            consume(general, fast, now, user, amounts(limited))
        elseif action < 0.9 then
            local message = quota(now, granted, limited)
            for _, host in ipairs(hosts) do
                host:receive(now, "central", message)
            end
        else
            for _, host in ipairs(hosts) do
                host.reporter:outgoing(now)
            end
        end
        for _, name in ipairs(USERS) do
            assert(contents(general, name) == contents(fast, name), "another account of " .. name)
        end
    end
    general:close()
    fast:close()
end

local failed = {}
for seed = first, first + seeds - 1 do
    local done, problem = pcall(run, seed)
    if not done then
        failed[#failed + 1] = seed .. ": " .. tostring(problem)
    end
end
print(write_json.text { fast = counts.fast, general = counts.general, failed = failed })
