-- A call that fails with an error leaves its record locked; the next call of that worker unlocks it,
-- whichever way it takes. The argument: a path for the memory. Prints how often ann passed after that.

local script, path = arg[0], arg[1]
local folder = script:match("^(.*)/[^/]*$")
package.path = folder .. "/../../lua/?.lua;" .. folder .. "/?.lua;" .. package.path

local admission = require "throttle.admission"
local memory = require "throttle.memory"
local memory_host = require "memory_host"

local ONE = { requests = 1 }
local host = memory_host.open(path, 50)
host:grant({ ann = { requests = { 1000, 0 } }, bob = { requests = { 1000, 0 } } })
for _ = 1, 2 do
    for _, name in ipairs { "ann", "bob" } do
        assert(host:throttle(name, ONE) == true and host:consume(name, ONE))
    end
end

local count_arrival = admission.count_arrival
admission.count_arrival = error
assert(not pcall(host.throttle, host, "ann", ONE))
admission.count_arrival = count_arrival
assert(host.users.locked, "the failed call has left nothing locked")

assert(host.users:begin_fast(memory.now(), host.service, "bob"))
local passed = 0
for _ = 1, 3 do
    passed = passed + (host:throttle("ann", ONE) == true and 1 or 0)
end
print(passed)
