-- Looks through the memory of a node that nobody uses at the moment: is every record whole and found?

local ffi = require "ffi"
local layout = require "throttle.layout"

local memory_audit = {}

local function check(is_right, ...)
    if not is_right then
        error(string.format(...), 0)
    end
end

-- Every lock can be had: those of dead processes are recovered, and none is held.
local function check_locks(memory)
    for number = 0, layout.LOCKS + layout.EXTRA_LOCKS - 1 do
        check(memory:lock(number), "lock %d stays locked", number)
        memory:unlock(number)
    end
end

-- The records of all buckets, each in one of them, once.
local function walk_buckets(memory)
    local places = {}
    for bucket = 0, memory.shape.buckets - 1 do
        local index = memory.heads[bucket]
        while index >= 0 do
            check(index < memory.header.used, "record %d of bucket %d was never used", index, bucket)
            check(not places[index], "record %d is twice in buckets", index)
            places[index] = bucket
            index = memory.records[index].next
        end
    end
    return places
end

local function walk_free(memory, places)
    local free = {}
    local index = memory.header.free
    while index >= 0 do
        check(index < memory.header.used, "free record %d was never used", index)
        check(not free[index], "record %d is free twice", index)
        check(not places[index], "record %d is free and in a bucket", index)
        check(memory.records[index].serial % 2 == 0, "free record %d has a user", index)
        free[index] = true
        index = memory.records[index].next
    end
    return free
end

local function describe(header, record)
    local account = record.account
    check(account.count >= 0 and account.count <= layout.MAX_CELLS, "an account has %d cells", account.count)
    local resources = {}
    for i = 0, account.count - 1 do
        local cell = account.cells[i]
        check(cell.consumed >= cell.consumed_before, "consumed is less than at the beginning of the window")
        check(cell.returned <= cell.granted, "returned %g, granted %g", cell.returned, cell.granted)
        if cell.resource ~= layout.REQUEST_STARTS then -- which has the name of another one
            resources[header:resource_name(cell.resource)] = {
                consumed = cell.consumed,
                requests = cell.requests,
                rejected = cell.rejected,
                granted = cell.granted,
                returned = cell.returned,
                reserved = cell.reserved + cell.old_reserved,
            }
        end
    end
    return resources
end

--- What each user has by resource (`users`; `shared` are overflow records), and how many records are lost.
function memory_audit.look(memory, header)
    check_locks(memory)
    local places = walk_buckets(memory)
    local free = walk_free(memory, places)
    local users, shared, found, lost = {}, {}, 0, 0
    for index = 0, memory.header.used - 1 do
        local record = memory.records[index]
        if record.serial % 2 == 1 then
            local name = ffi.string(record.name, record.name_size)
            check(places[index], "the record of user %s is in no bucket", name)
            check(places[index] == record.bucket, "the record of user %s is in the wrong bucket", name)
            local into = record.is_overflow ~= 0 and shared or users
            check(not into[name], "user %s has two records", name)
            into[name] = describe(header, record)
            found = found + 1
        elseif not free[index] then
            lost = lost + 1
        end
    end
    return { users = users, shared = shared, found = found, lost = lost, counted = memory.header.users }
end

return memory_audit
