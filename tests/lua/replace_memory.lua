-- Has several processes open the memory of another node at once, again and again.
--
-- They replace it. All of them must count in one and the same memory then, or each would have a limit
-- of its own, and only one of them would be reported. Prints what each round has counted.

local script, path, rounds, processes = arg[0], arg[1], tonumber(arg[2]), tonumber(arg[3])
local folder = script:match("^(.*)/[^/]*$")
package.path = folder .. "/../../lua/?.lua;" .. folder .. "/?.lua;" .. package.path

local ffi = require "ffi"
local memory = require "throttle.memory"
local memory_audit = require "memory_audit"
local memory_host = require "memory_host"

ffi.cdef [[
int fork(void);
int waitpid(int process, int *status, int options);
void _exit(int status);
]]

local MAX_USERS = 10
-- Time for the processes to be there before they begin together.
local START_SECONDS = 0.005
local status = ffi.new("int[1]")

local function count_once()
    local host = memory_host.open(path, MAX_USERS)
    assert(host:consume("ann", { requests = 1 }))
end

for _ = 1, rounds do
    assert(memory_host.open_memory(path, 10, "another")):close()
    local begin = memory.now() + START_SECONDS
    local children = {}
    for i = 1, processes do
        children[i] = ffi.C.fork()
        if children[i] == 0 then
            repeat until memory.now() >= begin
            ffi.C._exit(pcall(count_once) and 0 or 1)
        end
    end
    for _, child in ipairs(children) do
        assert(ffi.C.waitpid(child, status, 0) == child)
        assert(status[0] == 0, "a process has failed")
    end
    local host = memory_host.open(path, MAX_USERS)
    local found = memory_audit.look(host.memory, host.header)
    print(found.users.ann and found.users.ann.requests.consumed or 0)
    host.memory:close()
end
