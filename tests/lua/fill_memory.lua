-- Serves ever more users in a memory with little room, and prints as JSON what was counted, and of whom.
--
-- The arguments: the memory, the most users it may have, and how many come. Each begins and ends one
-- request. `refused`: of those that found room neither for themselves nor with others.

local script, path = arg[0], arg[1]
local max_users, users = tonumber(arg[2]), tonumber(arg[3])
local folder = script:match("^(.*)/[^/]*$")
package.path = folder .. "/../../lua/?.lua;" .. folder .. "/?.lua;" .. package.path

local memory_audit = require "memory_audit"
local memory_host = require "memory_host"
local write_json = require "write_json"

local ONE = { requests = 1 }

local host = memory_host.open(path, max_users)
local consumed, problem = 0, nil
for number = 1, users do
    host:throttle("user-" .. number, ONE)
    local done, err = host:consume("user-" .. number, ONE)
    consumed = consumed + (done and 1 or 0)
    problem = problem or err
end

local function sum(records)
    local total, count = 0, 0
    for _, resources in pairs(records) do
        count = count + 1
        total = total + (resources.requests and resources.requests.consumed or 0)
    end
    return { records = count, consumed = total }
end

local found = memory_audit.look(host.memory, host.header)
print(write_json.text {
    consumed = consumed,
    problem = problem,
    own = sum(found.users),
    shared = sum(found.shared),
})
