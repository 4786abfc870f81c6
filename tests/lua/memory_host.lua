-- The memory of a node and what decides on it, as in a worker of nginx, for programs that share a file.
--
-- Slots are an hour, so that no window begins while a test runs.

local header = require "throttle.header"
local memory = require "throttle.memory"
local reporter = require "throttle.reporter"
local stable_hash = require "throttle.stable_hash"
local user_table = require "throttle.user_table"

-- Any function of the names will do where no other node is to agree with this one.
stable_hash.md5 = function(text)
    local sum = 5381
    for i = 1, #text do
        sum = (sum * 1000003 + text:byte(i)) % 4294967296
    end
    return string.char(math.floor(sum / 16777216), math.floor(sum / 65536) % 256, math.floor(sum / 256) % 256,
        sum % 256) .. ("\0"):rep(12)
end

local SLOT_SECONDS = 3600

local memory_host = {}
memory_host.__index = memory_host

--- What a worker makes of a memory that it has opened.
function memory_host.new(shared, max_users)
    local self = setmetatable({ memory = shared }, memory_host)
    self.header = header.new(shared, { lease = 3, reservation_seconds = 60 })
    self.users = user_table.new(shared, self.header, { node_id = "node", max_users = max_users })
    self.service = assert(self.header:service_number("front"))
    return self
end

function memory_host.open_memory(path, max_records, node_id, slot_seconds)
    return memory.open {
        path = path,
        node_id = node_id or "node",
        slot_seconds = slot_seconds or SLOT_SECONDS,
        max_records = max_records,
        now = memory.now(),
        wall = memory.wall(),
    }
end

function memory_host.open(path, max_users)
    local shared = assert(memory_host.open_memory(path, max_users + user_table.OVERFLOW_RECORDS))
    return memory_host.new(shared, max_users)
end

function memory_host:throttle(name, expected)
    local costs = assert(self.users:parse_costs("expect", expected))
    return self.users:throttle(memory.now(), self.service, name, costs, false, false)
end

function memory_host:consume(name, amounts)
    local costs = assert(self.users:parse_costs("consume", amounts))
    return self.users:consume(memory.now(), self.service, name, costs)
end

--- Have a leader tell the shares of users, {granted, safe} by user and resource.
function memory_host:grant(users)
    local now = memory.now()
    self.reporter = self.reporter or reporter.new(self.users, {
        node_id = "node",
        centrals = { "central" },
        now = now,
    })
    self.reporter:receive(now, "central", {
        kind = "quota",
        central = "central",
        epoch = 1,
        version = 1,
        slot = 0,
        time = memory.wall(),
        nodes = 1,
        whole = false,
        interval = 0.05,
        services = { front = { newcomers = {}, users = users, hints = {} } },
    })
end

return memory_host
