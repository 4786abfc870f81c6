-- Kills a process at every point of an operation on the memory of a node at which the memory has changed.
--
-- A child that shares the memory does the operation, and notes the instructions of LuaJIT's interpreter
-- after which the memory was another one than before. For each of these a further child does the same,
-- on memory with the same contents, and is killed right there. Then the parent looks through the memory:
-- it must be whole, with the operation done or not done, and serve as before.
--
-- Prints JSON: by operation, at how many points it was killed, or what was wrong.

local script, path = arg[0], arg[1]
local folder = script:match("^(.*)/[^/]*$")
package.path = folder .. "/../../lua/?.lua;" .. folder .. "/?.lua;" .. package.path

local ffi = require "ffi"
local memory = require "throttle.memory"
local memory_audit = require "memory_audit"
local memory_host = require "memory_host"
local write_json = require "write_json"

ffi.cdef [[
int fork(void);
int waitpid(int process, int *status, int options);
int kill(int process, int signal);
int getpid(void);
void _exit(int status);
void *memcpy(void *target, const void *source, size_t size);
void *memset(void *target, int byte, size_t size);
]]

local C = ffi.C
local SIGKILL = 9
local MAX_POINTS = 1000
local MAX_USERS = 50
local GRANTED = 1000
local WORD_BYTES = 8
local ONE = { requests = 1 }
local status = ffi.new("int[1]")

local function find_record(host, name)
    for index = 0, host.memory.header.used - 1 do
        local record = host.memory.records[index]
        if record.serial % 2 == 1 and ffi.string(record.name, record.name_size) == name then
            return index, record.serial
        end
    end
end

local function value(found, name, field)
    local cell = found.users[name] and found.users[name].requests
    return cell and cell[field] or 0
end

local operations = {
    ["throttle of a known user"] = function(host)
        host:throttle("ann", ONE)
    end,
    ["throttle of a new user"] = function(host)
        host:throttle("new", ONE)
    end,
    ["consume of a known user"] = function(host)
        host:consume("ann", ONE)
    end,
    ["throttle on the fast path"] = function(host)
        host.users:state(memory.now(), host.service, "ann") -- so that it knows where the record is
        assert(host.users:begin_fast(memory.now(), host.service, "ann"))
    end,
    ["consume on the fast path"] = function(host)
        host.users:state(memory.now(), host.service, "ann")
        local costs = host.users:parse_costs("consume", ONE)
        assert(host.users:finish_fast(memory.now(), host.service, "ann", costs))
    end,
    ["consume of a new user"] = function(host)
        host:consume("new", ONE)
    end,
    ["consume of a new resource"] = function(host)
        host:consume("ann", { requests = 1, bytes = 1 })
    end,
    ["forgetting a user"] = function(host)
        local index, serial = find_record(host, "idle")
        host.users:forget(memory.now(), index, serial, 4294967295)
    end,
    ["a grant to a known user"] = function(host)
        host:grant({ ann = { requests = { GRANTED + 7, 0 } } })
    end,
    ["a grant to a new user"] = function(host)
        host:grant({ new = { requests = { 7, 0 } } })
    end,
}

--- ffi.copy and ffi.fill, word by word: a process may be killed in the middle of a copy, too.
local function copy_by_words(target, source, size)
    target, source = ffi.cast("char *", target), ffi.cast("const char *", source)
    for at = 0, size - 1, WORD_BYTES do
        C.memcpy(target + at, source + at, math.min(WORD_BYTES, size - at))
    end
end

local function fill_by_words(target, size, byte)
    target = ffi.cast("char *", target)
    for at = 0, size - 1, WORD_BYTES do
        C.memset(target + at, byte or 0, math.min(WORD_BYTES, size - at))
    end
end

--- Run an operation in a child that calls `hook` after every `steps` instructions; whether it was killed.
local function run_in_child(operation, host, steps, hook)
    local child = C.fork()
    if child == 0 then
        jit.off() -- compiled code does not call the hook
        jit.flush()
        ffi.copy, ffi.fill = copy_by_words, fill_by_words
        debug.sethook(hook, "", steps)
        operation(host)
        debug.sethook()
        C._exit(0)
    end
    assert(C.waitpid(child, status, 0) == child)
    return status[0] == SIGKILL
end

--- The numbers of the instructions after which the memory has changed.
local function find_points(operation, host, size)
    local start = host.memory.start
    local before = ffi.new("char[?]", size)
    local points = assert(memory_host.open_memory(nil, MAX_POINTS)).start -- any memory that a child shares
    local count, found = ffi.cast("int32_t *", points), ffi.cast("int32_t *", points) + 1
    local steps = 0
    count[0] = 0
    ffi.copy(before, start, size)
    assert(not run_in_child(operation, host, 1, function()
        steps = steps + 1
        if C.memcmp(before, start, size) ~= 0 then
            C.memcpy(before, start, size)
            found[count[0]] = steps
            count[0] = count[0] + 1
        end
    end))
    local list = {}
    for i = 0, count[0] - 1 do
        list[#list + 1] = found[i]
    end
    assert(#list > 0 and #list < MAX_POINTS)
    return list
end

local function is_same(one, other)
    if type(one) ~= "table" or type(other) ~= "table" then
        return one == other
    end
    for key, each in pairs(one) do
        if not is_same(each, other[key]) then
            return false
        end
    end
    for key in pairs(other) do
        if one[key] == nil then
            return false
        end
    end
    return true
end

--- Each user is as before the operation, or as after it.
local function check_users(before, found, after)
    for _, audit in ipairs { before, found, after } do
        for name in pairs(audit.users) do
            local user = found.users[name]
            if not is_same(user, before.users[name]) and not is_same(user, after.users[name]) then
                error(("half done: user %s has %s"):format(name, user and write_json.text(user) or "nothing"), 0)
            end
        end
    end
end

--- Other users, and this one, are served as before.
local function check_service(host)
    local before = memory_audit.look(host.memory, host.header)
    for _, name in ipairs { "ann", "idle", "new", "newer" } do
        assert(host:throttle(name, ONE) == true, name .. " was refused")
        assert(host:consume(name, ONE))
    end
    local after = memory_audit.look(host.memory, host.header)
    for _, name in ipairs { "ann", "new", "newer" } do
        assert(value(after, name, "consumed") == value(before, name, "consumed") + 1, name .. " is not counted")
    end
end

local function kill_itself()
    C.kill(C.getpid(), SIGKILL)
end

local function try(name, operation)
    local host = assert(memory_host.open(path .. "-" .. name:gsub(" ", "-"), MAX_USERS))
    host:grant({ ann = { requests = { GRANTED, 0 } }, ben = { requests = { GRANTED, 0 } }, idle = {} })
    assert(host:throttle("ann", ONE) == true and host:consume("ann", ONE))
    local shared = host.memory
    local size = shared.shape.records + shared.header.committed
    local contents = ffi.string(shared.start, size)
    local before = memory_audit.look(shared, host.header)
    local points = find_points(operation, memory_host.new(shared, MAX_USERS), size)
    local done_once = memory_audit.look(shared, host.header)
    for _, steps in ipairs(points) do
        ffi.copy(shared.start, contents, size)
        host = memory_host.new(shared, MAX_USERS)
        assert(run_in_child(operation, host, steps, kill_itself))
        local done, problem = pcall(function()
            local found = memory_audit.look(shared, host.header)
            check_users(before, found, done_once)
            assert(found.lost <= 1, "more than one record is lost")
            check_service(host)
        end)
        if not done then
            error(("killed after %d instructions: %s"):format(steps, problem), 0)
        end
    end
    shared:close()
    return #points
end

local answers = {}
for name, operation in pairs(operations) do
    local done, result = pcall(try, name, operation)
    answers[name] = done and { points = result } or { problem = tostring(result) }
end
print(write_json.text(answers))
