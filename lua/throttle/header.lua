--- What holds for all users of a host: the window, names by number, and who needs credit.
--
-- One worker, the reporter, publishes it; the others read it at each request. It is double-buffered:
-- the new version is written to the buffer that is not in use, and then one number says which one
-- is. So a reporter that is killed over it leaves the old version, and no worker ever waits. Windows
-- go on by themselves while nothing is published.
--
-- Names of services and resources are added under a lock and stay for the life of the memory. Users
-- that need credit are noted in a ring; one that is overwritten is asked for again after the retry
-- time.

local ffi = require "ffi"
local json = require "throttle.json"
local layout = require "throttle.layout"

local floor, min = math.floor, math.min

local MAX_CELLS, MAX_SERVICES = layout.MAX_CELLS, layout.MAX_SERVICES
-- The reporter publishes each window. After this many without a publication it counts as stopped.
local SILENT_WINDOWS = 2
local PUBLISHED_BYTES = ffi.sizeof("throttle_published")

local header = {}
header.__index = header

--- `opts`: lease (in slots), reservation_seconds, fallback: units per second by resource, or nil.
function header.new(memory, opts)
    local slot_seconds = memory.header.slot_seconds
    local self = setmetatable({
        memory = memory,
        shared = memory.header,
        slot_seconds = slot_seconds,
        lease = opts.lease,
        reservation_windows = math.max(1, floor(opts.reservation_seconds / slot_seconds + 0.5)),
        service_numbers = {},
        resource_numbers = {},
        resource_names = { [layout.REQUEST_STARTS] = "requests" },
        service_names = {},
        published = ffi.new("throttle_published"),
        publications = -1,
        window = {},
        fallback = ffi.new("throttle_defaults"),
    }, header)
    if opts.fallback then
        local shares = {}
        for resource, rate in pairs(opts.fallback) do
            shares[resource] = rate * slot_seconds
        end
        self:fill_defaults(self.fallback, shares)
    else
        self.fallback.count = 1
        self.fallback.resource[0] = layout.REQUEST_STARTS
        self.fallback.share[0] = 10 * slot_seconds -- requests, for each user
    end
    return self
end

-- Names

local function name_at(names, number)
    return ffi.string(names[number].bytes, names[number].size)
end

--- The number of a name, added if there is none; nil and why if there is no room.
local function number_of(self, name, names, count_field, most)
    local shared = self.shared
    if not self.memory:lock(layout.NAMES_LOCK) then
        return nil, "the memory is locked by a worker that stands still"
    end
    local count = shared[count_field]
    local number, err
    for i = 0, count - 1 do
        if name_at(names, i) == name then
            number = i
            break
        end
    end
    if not number and count >= most then
        err = "a node has at most " .. most .. " " .. count_field .. ", and this is one more: " .. name
    elseif not number then
        number = count
        names[number].size = #name
        ffi.copy(names[number].bytes, name, #name)
        shared[count_field] = count + 1
    end
    self.memory:unlock(layout.NAMES_LOCK)
    return number, err
end

--- The number of a service; nil and why if there is no room for one more.
function header:service_number(name)
    local number, err = self.service_numbers[name], nil
    if not number then
        number, err = number_of(self, name, self.shared.service_names, "services", MAX_SERVICES)
        self.service_numbers[name] = number
    end
    return number, err
end

--- The number of a resource; nil and why if there is no room for one more, or it is no name.
function header:resource_number(name)
    local number, err = self.resource_numbers[name], nil
    if not number then
        -- A central would refuse the whole report for one name that is not.
        if type(name) ~= "string" or name == "" or #name > layout.MAX_NAME_BYTES or json.find_invalid_utf8(name) then
            return nil, "a resource must be a name of 1 to 200 bytes of UTF-8, got " .. tostring(name)
        end
        number, err = number_of(self, name, self.shared.resource_names, "resources", layout.MAX_RESOURCES)
        self.resource_numbers[name] = number
    end
    return number, err
end

--- The number of a service that some worker of this host has named, or nil.
function header:known_service(name)
    if not self.service_numbers[name] then
        for i = 0, self.shared.services - 1 do
            self.service_numbers[name_at(self.shared.service_names, i)] = i
        end
    end
    return self.service_numbers[name]
end

function header:service_name(number)
    local name = self.service_names[number]
    if not name then
        name = name_at(self.shared.service_names, number)
        self.service_names[number] = name
    end
    return name
end

function header:resource_name(number)
    local name = self.resource_names[number]
    if not name then
        name = name_at(self.shared.resource_names, number)
        self.resource_names[number] = name
    end
    return name
end

-- What the reporter publishes

function header:fill_defaults(defaults, shares)
    local count = 0
    for resource, share in pairs(shares) do
        local number = self:resource_number(resource)
        if number and count < MAX_CELLS then
            defaults.resource[count] = number
            defaults.share[count] = share
            count = count + 1
        end
    end
    defaults.count = count
end

--- Write the states of services into what is published.
local function publish_states(self, published, fields)
    ffi.fill(published.has_newcomers, MAX_SERVICES)
    for name, shares in pairs(fields.newcomers) do
        local service = self:known_service(name) -- the others are not served here
        if service and next(shares) then
            published.has_newcomers[service] = 1
            self:fill_defaults(published.newcomers[service], shares)
        end
    end
    for service = 0, MAX_SERVICES - 1 do
        published.alone_since[service] = fields.alone_since
    end
    for name, since in pairs(fields.alone_services) do
        local service = self:known_service(name)
        if service then
            published.alone_since[service] = since
        end
    end
end

--- Publish what holds for all users from now on.
--
-- `fields`: those of throttle_published that are one number; and if `is_new_state`, as the state of
-- users may be another one, `newcomers` by service, `alone_since`, and `alone_services`, those for
-- which another time than `alone_since` holds.
function header:publish(fields)
    local shared = self.shared
    local before = shared.publications
    local publications = (before + 1) % 4294967296
    local published = shared.published[publications % 2]
    ffi.copy(published, shared.published[before % 2], PUBLISHED_BYTES)
    published.version = fields.version
    published.begin, published.finish = fields.begin, fields.finish
    published.slot, published.epoch = fields.slot, fields.epoch
    published.window, published.nodes = fields.window, fields.nodes
    published.slot_frozen = fields.slot_frozen and 1 or 0
    published.lead_seconds = fields.lead_seconds
    published.wait_seconds = fields.wait_seconds
    published.retry_seconds = fields.retry_seconds
    if fields.is_new_state then
        published.generation = (published.generation + 1) % 4294967296
        publish_states(self, published, fields)
    end
    shared.publications = publications
end

--- What was published last, as a table.
function header:last_published()
    local shared, published = self.shared, self.published
    local seen = shared.publications
    repeat
        self.publications = seen
        ffi.copy(published, shared.published[seen % 2], PUBLISHED_BYTES)
        seen = shared.publications
    until seen == self.publications
    self.services = {}
    self.view = {
        version = published.version,
        begin = published.begin,
        finish = published.finish,
        slot = published.slot,
        epoch = published.epoch,
        window = published.window,
        generation = published.generation,
        is_slot_frozen = published.slot_frozen ~= 0,
        lead_seconds = published.lead_seconds,
        wait_seconds = published.wait_seconds,
        retry_seconds = published.retry_seconds,
    }
    return self.view
end

--- The shares of newcomers that were published last, by service and resource.
function header:published_newcomers()
    local published, newcomers = self.published, {}
    for service = 0, self.shared.services - 1 do
        if published.has_newcomers[service] ~= 0 then
            local defaults, shares = published.newcomers[service], {}
            for i = 0, defaults.count - 1 do
                shares[self:resource_name(defaults.resource[i])] = defaults.share[i]
            end
            newcomers[self:service_name(service)] = shares
        end
    end
    return newcomers
end

--- What was published of a service, kept until the next publication.
local function view_service(self, service)
    local published = self.published
    local has_newcomers = published.has_newcomers[service] ~= 0
    local view = {
        alone_since = published.alone_since[service],
        has_newcomers = has_newcomers,
        defaults = has_newcomers and published.newcomers[service] or self.fallback,
    }
    self.services[service] = view
    return view
end

--- What is in effect for a service at a time: a table, filled in anew by each call.
function header:window_at(service, time)
    if self.shared.publications ~= self.publications then
        self:last_published()
    end
    local view = self.view
    local of_service = self.services[service] or view_service(self, service)
    local window, more = self.window, 0
    window.begin, window.finish = view.begin, view.finish
    if time >= view.finish then
        -- This window is not published yet: it follows from the last one that was.
        more = floor(min((time - view.finish) / self.slot_seconds, 1e9))
        window.begin = view.finish + more * self.slot_seconds
        window.finish = window.begin + self.slot_seconds
        more = more + 1
    end
    window.time = time
    window.slot = view.is_slot_frozen and view.slot or view.slot + more
    window.number = view.window + more
    window.generation = view.generation
    window.version = view.version
    window.epoch = view.epoch
    window.alone_since = of_service.alone_since
    if more > SILENT_WINDOWS and window.alone_since < 0 then
        window.alone_since = view.finish -- the reporter stands still, and with it all news of the leader
    end
    window.lead_seconds = view.lead_seconds
    window.retry_seconds = view.retry_seconds
    window.slot_seconds = self.slot_seconds
    window.lease = self.lease
    window.reservation_windows = self.reservation_windows
    window.period = floor(time / (self.slot_seconds * self.reservation_windows)) % 4294967296
    window.has_newcomers = of_service.has_newcomers
    window.defaults = of_service.defaults
    return window
end

--- What was published last, if its window has not ended and nothing was published since it was read; else nil.
function header:current(time)
    local view = self.view
    if view and time < view.finish and self.shared.publications == self.publications then
        return view
    end
    return nil
end

--- How long a request may wait for an answer of the leader; 0 while none is heard.
function header:wait_seconds()
    local published = self:last_published()
    return published.epoch < 0 and 0 or published.wait_seconds
end

--- Changes whenever a request that waits may find what it waits for.
function header:news()
    return self.shared.answers + self.shared.publications
end

--- A Quota has been written into the records.
function header:count_answer()
    self.shared.answers = (self.shared.answers + 1) % 4294967296
end

-- Users that need credit

--- Have the reporter ask for a user.
function header:push_ask(service, name)
    local shared = self.shared
    if self.memory:lock(layout.ASKS_LOCK) then
        local ask = shared.asks[shared.asks_made % layout.ASK_RING_SIZE]
        ask.service = service
        ask.size = #name
        ffi.copy(ask.name, name, #name)
        shared.asks_made = (shared.asks_made + 1) % 4294967296
        self.memory:unlock(layout.ASKS_LOCK)
    end
end

function header:has_asks()
    return self.shared.asks_made ~= self.shared.asks_taken
end

--- Whether the ring is more than half full: its oldest entries may be overwritten soon.
function header:has_many_asks()
    return (self.shared.asks_made - self.shared.asks_taken) % 4294967296 > layout.ASK_RING_SIZE / 2
end

--- The users that were noted since the last call: an array of {service, user}.
function header:take_asks()
    local shared, asks = self.shared, {}
    if not self:has_asks() or not self.memory:lock(layout.ASKS_LOCK) then
        return asks
    end
    local many = (shared.asks_made - shared.asks_taken) % 4294967296
    for i = math.max(0, many - layout.ASK_RING_SIZE), many - 1 do
        local ask = shared.asks[(shared.asks_taken + i) % layout.ASK_RING_SIZE]
        asks[#asks + 1] = { service = self:service_name(ask.service), user = ffi.string(ask.name, ask.size) }
    end
    shared.asks_taken = shared.asks_made
    self.memory:unlock(layout.ASKS_LOCK)
    return asks
end

return header
