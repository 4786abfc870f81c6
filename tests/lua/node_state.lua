-- An end node in one object, without workers and sockets: its memory belongs to this process alone.

local ffi = require "ffi"
local header = require "throttle.header"
local memory = require "throttle.memory"
local reporter = require "throttle.reporter"
local stable_hash = require "throttle.stable_hash"
local user_table = require "throttle.user_table"

ffi.cdef [[
unsigned char *MD5(const unsigned char *text, size_t size, unsigned char *digest);
]]
local crypto = ffi.load("libcrypto.so.3")

stable_hash.md5 = function(text)
    local digest = ffi.new("unsigned char[16]")
    crypto.MD5(text, #text, digest)
    return ffi.string(digest, 16)
end

local node_state = {}
node_state.__index = node_state

function node_state.new(options)
    local max_users = options.max_users or 1000
    local shared = assert(memory.open {
        node_id = options.node_id,
        slot_seconds = options.slot_seconds or 1,
        max_records = max_users + user_table.OVERFLOW_RECORDS,
        now = options.now,
        wall = options.wall,
    })
    local self = setmetatable({ memory = shared, tickets = {} }, node_state)
    self.header = header.new(shared, {
        lease = options.lease or 3,
        reservation_seconds = options.reservation_seconds or 60,
        fallback = options.fallback,
    })
    self.users = user_table.new(shared, self.header, { node_id = options.node_id, max_users = max_users })
    self.reporter = reporter.new(self.users, {
        node_id = options.node_id,
        boot = options.boot,
        centrals = options.centrals,
        now = options.now,
    })
    return self
end

function node_state:close()
    self.memory:close()
end

function node_state:throttle(now, service, user, cost, can_wait, is_retry, ticket)
    self.reporter:advance_to(now)
    local costs = cost and assert(self.users:parse_costs("expect", cost)) or nil
    local number = self.header:service_number(service)
    local answer, short, retry_after = self.users:throttle(now, number, user, costs, can_wait, is_retry, ticket)
    return answer, short and self.header:resource_name(short), retry_after
end

function node_state:consume(now, service, user, amounts, ticket)
    self.reporter:advance_to(now)
    local costs = assert(self.users:parse_costs("amounts", amounts))
    return self.users:consume(now, self.header:service_number(service), user, costs, ticket)
end

function node_state:state(now, service, user)
    self.reporter:advance_to(now)
    return self.users:state(now, self.header:service_number(service), user)
end

-- The node serves whatever it hears of.
function node_state:receive(now, central, message)
    for service in pairs(message.services or {}) do
        self.header:service_number(service)
    end
    self.reporter:receive(now, central, message)
end

return node_state
