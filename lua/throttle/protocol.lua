--- The messages between a node and a central as JSON texts: docs/protocol.md has their meaning.
--
--     report, ask      what a node sends: `new_report`, `encode_ask`
--     ack, quota       what a central sends: `decode`
--     classic          the protocol before: `encode_classic_report`, `decode_classic_quota`
--
-- What is an object on the wire is a table with these keys, what is a list there is a list here: a
-- share is {granted, safe}, a hint {wait, recall, may_float}, a credit {granted, returned, used, cost}.
--
-- Everything that is decoded is checked, so that no value of a bad frame gets into the node's counts.
-- A bad frame is nil and what is wrong. What the central would refuse is not written: it would close
-- the connection, and be sent the same again after each reconnect. That is the caller's error.
--
-- Texts are made of pieces of less than 128 bytes (but for names, which are there already). LuaJIT
-- keeps each string in a hash table, and of longer ones it hashes a few bytes: whole lines of a report,
-- which all begin and end alike, would collide, and 14,000 of them take seconds.

local ffi = require "ffi"
local json = require "throttle.json"

local concat, sort = table.concat, table.sort
local byte, char, find, format, gsub, sub =
    string.byte, string.char, string.find, string.format, string.gsub, string.sub
local getmetatable, next, pairs, setmetatable, tonumber, tostring, type =
    getmetatable, next, pairs, setmetatable, tonumber, tostring, type
local encode_number = json.encode_number

local MAX_AMOUNT = 1e18
local MAX_SECONDS = 1e12
local MAX_DURATION = 3600
local MAX_REQUESTS = 1e9 -- that an ask is for
local MAX_WHOLE = 2 ^ 53 - 1
local NAME_BYTES, SERVICE_BYTES = 200, 50

-- Of one frame.
local MAX_BYTES = 16 * 1024 * 1024
local MAX_OBJECTS = 30000 -- and lists
local MAX_VALUES = 150000
local MAX_LINES = 50000 -- of a report, or credits of an ask
local MAX_ASKED = 20000
local MAX_SERVICES, MAX_RESOURCES = 1000, 1000
local MAX_HINTS = 200000
-- A quota of 100,000 shares, 200,000 users and 200,000 hints has 1.3 million.
local MAX_QUOTA_VALUES = 2000000

local LINE_VALUES = 7
local LINE_OBJECTS = 3 -- the line, if it is the first of its service: that, a user and a list
-- A character of a name may be an escape of six.
local LINE_BYTES = 6 * (SERVICE_BYTES + 2 * NAME_BYTES) + 25 * LINE_VALUES + 16

-- A name of more than 160 bytes is cut, as the Python node cuts it: the same user is one for both.
local MAX_USER_BYTES = 160
local CUT_BYTES = 127
local STEPS_BETWEEN_PAUSES = 500

local protocol = {}

-- Checks. Each is a function of a value, and the words for what it expects.

local function is_object(value)
    return type(value) == "table" and value ~= json.null and getmetatable(value) ~= json.array
end

local function is_list(value, size)
    return type(value) == "table" and getmetatable(value) == json.array and #value >= size
end

local function is_flag(value)
    return type(value) == "boolean"
end

local function is_amount(value)
    return type(value) == "number" and value >= 0 and value <= MAX_AMOUNT
end

local function is_time(value)
    return type(value) == "number" and value >= -MAX_SECONDS and value <= MAX_SECONDS
end

local function is_duration(value)
    return type(value) == "number" and value >= 0 and value <= MAX_DURATION
end

local function is_name(value)
    return type(value) == "string" and #value > 0 and #value <= NAME_BYTES
end

local function is_service(value)
    return type(value) == "string" and #value > 0 and #value <= SERVICE_BYTES
end

local function is_whole(value, least, most)
    return type(value) == "number" and value >= least and value <= most and value % 1 == 0
end

local function whole(least, most)
    return function(value)
        return is_whole(value, least, most)
    end, format("a whole number from %d to %.0f", least, most)
end

local OBJECT, FLAG = "an object", "true or false"
local AMOUNT = "an amount from 0 to 1e18"
local TIME = "seconds from -1e12 to 1e12"
local DURATION = "seconds from 0 to 3600"
local NAME = "a name of 1 to 200 bytes of UTF-8"
local SERVICE = "a name of 1 to 50 bytes of UTF-8"
local is_count, COUNT = whole(0, MAX_WHOLE)
local is_position, POSITION = whole(-1, MAX_WHOLE) -- an epoch or a slot
local is_sequence, SEQUENCE = whole(0, 2 ^ 31 - 1)
local is_node_count, NODE_COUNT = whole(0, 2 ^ 32 - 1)
local is_asked, ASKED = whole(0, MAX_REQUESTS)
-- Below 2^56, where a double is one in eight. It is a hash and only compared: that it is rounded does
-- no harm, but the highest are rounded up to 2^56.
local is_version, VERSION = whole(0, 2 ^ 56)

local function show(value)
    local shown
    if value == nil then
        return "missing"
    elseif is_object(value) then
        return OBJECT
    elseif getmetatable(value) == json.array then
        return "a list"
    elseif type(value) == "string" then
        -- ASCII alone: the message goes into logs, and into the reason of a close.
        shown = "'" .. gsub(value, "[^\32-\126]", "?") .. "'"
    else
        shown = tostring(value)
    end
    return #shown > 60 and sub(shown, 1, 57) .. "..." or shown
end

local function describe(what, value, expected)
    return format("%s is %s, expected %s", what, show(value), expected)
end

local function default(value, instead)
    if value == nil then
        return instead
    end
    return value
end

--- What is wrong with `values`, of which `fields` is a list of {name, check, expected, default}.
local function find_fault(values, fields)
    for i = 1, #fields do
        local field = fields[i]
        local value = default(values[field[1]], field[4])
        if not field[2](value) then
            return describe(field[1], value, field[3])
        end
    end
    return nil
end

local ACK_FIELDS = {
    {"central", is_name, NAME},
    {"leads", is_flag, FLAG},
    {"epoch", is_position, POSITION},
    {"boot", is_count, COUNT},
    {"sequence", is_sequence, SEQUENCE},
    {"sent", is_time, TIME},
    {"time", is_time, TIME},
}
local QUOTA_FIELDS = {
    {"central", is_name, NAME},
    {"epoch", is_position, POSITION},
    {"version", is_version, VERSION},
    {"slot", is_position, POSITION},
    {"time", is_time, TIME},
    {"nodes", is_node_count, NODE_COUNT},
    {"whole", is_flag, FLAG},
    {"interval", is_duration, DURATION},
    {"services", is_object, OBJECT},
}
local REPORT_FIELDS = {
    {"node", is_name, NAME},
    {"boot", is_count, COUNT},
    {"sequence", is_sequence, SEQUENCE},
    {"since", is_sequence, SEQUENCE},
    {"epoch", is_position, POSITION},
    {"slot", is_position, POSITION},
    {"leaving", is_flag, FLAG, false},
    {"settled_slot", is_position, POSITION, -1},
}
local ASK_FIELDS = {
    {"node", is_name, NAME},
    {"boot", is_count, COUNT},
    {"sent", is_time, TIME},
}

-- Decoding.

--- A function to call at each step of a loop; now and then it calls `pause`.
local function pacer(pause)
    local steps = 0
    return function()
        steps = steps + 1
        if steps % STEPS_BETWEEN_PAUSES == 0 and pause then
            pause()
        end
    end
end

local function decode_object(text, pause, max_values)
    if #text > MAX_BYTES then
        return nil, format("the frame has %d bytes, expected at most %d", #text, MAX_BYTES)
    end
    local message, fault = json.decode(text, {pause = pause, max_values = max_values})
    if message == nil then
        return nil, fault
    elseif not is_object(message) then
        return nil, describe("the frame", message, OBJECT)
    end
    return message
end

--- What is wrong with an object of amounts by resource, if anything; `check` is of one of them.
local function find_resources_fault(what, resources, find_value_fault)
    if not is_object(resources) then
        return describe(what, resources, OBJECT)
    end
    local count = 0
    for resource, value in next, resources do
        count = count + 1
        if not is_name(resource) then
            return describe("a resource", resource, NAME)
        end
        local fault = find_value_fault(value)
        if fault then
            return fault
        end
    end
    if count > MAX_RESOURCES then
        return format("the number of %s is %d, expected at most %d", what, count, MAX_RESOURCES)
    end
    return nil
end

local function find_amount_fault(amount)
    return not is_amount(amount) and describe("an amount", amount, AMOUNT) or nil
end

local function find_share_fault(share)
    if not is_list(share, 2) then
        return describe("a share", share, "[granted, safe]")
    elseif not is_amount(share[1]) then
        return describe("granted", share[1], AMOUNT)
    elseif not is_amount(share[2]) then
        return describe("safe", share[2], AMOUNT)
    end
    return nil
end

local function find_hint_fault(hint)
    if not is_list(hint, 3) then
        return describe("a hint", hint, "[wait, recall, may_float]")
    elseif not is_duration(hint[1]) then
        return describe("wait", hint[1], DURATION)
    elseif not is_flag(hint[2]) then
        return describe("recall", hint[2], FLAG)
    elseif not is_flag(hint[3]) then
        return describe("may_float", hint[3], FLAG)
    end
    return nil
end

local function find_users_fault(users, find_value_fault, step)
    if not is_object(users) then
        return describe("users", users, OBJECT)
    end
    for user, resources in next, users do
        step()
        if not is_name(user) then
            return describe("a user", user, NAME)
        end
        local fault = find_resources_fault("resources", resources, find_value_fault)
        if fault then
            return fault
        end
    end
    return nil
end

local function find_hints_fault(hints, step)
    if not is_object(hints) then
        return describe("hints", hints, OBJECT)
    end
    local count = 0
    for user, hint in next, hints do
        step()
        count = count + 1
        if not is_name(user) then
            return describe("a user", user, NAME)
        end
        local fault = find_hint_fault(hint)
        if fault then
            return fault
        end
    end
    if count > MAX_HINTS then
        return format("the number of hints is %d, expected at most %d", count, MAX_HINTS)
    end
    return nil
end

local function find_service_fault(part, step)
    return find_resources_fault("newcomers", part.newcomers, find_amount_fault)
        or find_users_fault(part.users, find_share_fault, step)
        or find_hints_fault(part.hints, step)
end

local function decode_ack(body)
    local fault = find_fault(body, ACK_FIELDS)
    if fault then
        return nil, fault
    end
    return {
        kind = "ack", central = body.central, leads = body.leads, epoch = body.epoch,
        boot = body.boot, sequence = body.sequence, sent = body.sent, time = body.time,
    }
end

local function decode_quota(body, pause)
    local fault = find_fault(body, QUOTA_FIELDS)
    if fault then
        return nil, fault
    end
    local services, count, step = {}, 0, pacer(pause)
    for service, part in next, body.services do
        count = count + 1
        if not is_service(service) then
            return nil, describe("a service", service, SERVICE)
        elseif not is_object(part) then
            return nil, describe("a service", part, OBJECT)
        end
        part = {
            newcomers = default(part.newcomers, {}),
            users = default(part.users, {}),
            hints = default(part.hints, {}),
        }
        fault = find_service_fault(part, step)
        if fault then
            return nil, format("%s (service %s)", fault, show(service))
        end
        services[service] = part
    end
    if count > MAX_SERVICES then
        return nil, format("the number of services is %d, expected at most %d", count, MAX_SERVICES)
    end
    return {
        kind = "quota", central = body.central, epoch = body.epoch, version = body.version,
        slot = body.slot, time = body.time, nodes = body.nodes, whole = body.whole,
        interval = body.interval, services = services,
    }
end

--- Decode what a central has sent: an ack or a quota, by `kind`; or nil and what is wrong.
--
-- The fields have the names of the page. `quota.services[service]` is {newcomers, users, hints}, where
-- newcomers[resource] is an amount, users[user][resource] a share (without any, the user is free) and
-- hints[user] a hint; none of the three is nil. `pause` is called now and then, and may yield.
function protocol.decode(text, pause)
    local message, fault = decode_object(text, pause, MAX_QUOTA_VALUES)
    if not message then
        return nil, fault
    elseif is_object(message.ack) then
        return decode_ack(message.ack)
    elseif is_object(message.quota) then
        return decode_quota(message.quota, pause)
    end
    local found = {}
    for key in pairs(message) do
        found[#found + 1] = key
    end
    sort(found)
    return nil, format(
        "the keys of the frame are %s, expected ack or quota with an object", show(concat(found, ", "))
    )
end

-- Names.

local function md5()
    error("no MD5: protocol.set_md5 was not called", 0)
end

--- Set the function that returns the MD5 of a text in hex; in nginx that is `ngx.md5`.
function protocol.set_md5(f)
    md5 = f
end

local function is_continuation(code)
    return code ~= nil and code >= 0x80 and code < 0xC0
end

--- The start of a UTF-8 text, `size` bytes at most, in whole characters.
local function cut(text, size)
    while is_continuation(byte(text, size + 1)) do
        size = size - 1
    end
    return sub(text, 1, size)
end

local function escape_invalid(bytes, at)
    local parts, from = {}, 1
    while at do
        parts[#parts + 1] = sub(bytes, from, at - 1)
        parts[#parts + 1] = format("%%%02X", byte(bytes, at))
        from = at + 1
        at = json.find_invalid_utf8(bytes, from)
    end
    parts[#parts + 1] = sub(bytes, from)
    return concat(parts)
end

--- The name of a user on the wire, at most 160 bytes of UTF-8, for any bytes of a request.
--
-- A name that is UTF-8 and not longer is its own. Of others each byte that is not UTF-8 becomes %XX;
-- what is then too long is cut; and the MD5 of all bytes follows, so that no two become one. (But
-- whoever may choose any name can choose the very text that another one becomes, and shares its
-- credit. The Python node has no other way for long names.)
function protocol.utf8_name(bytes)
    local invalid = json.find_invalid_utf8(bytes)
    if not invalid and #bytes <= MAX_USER_BYTES then
        return bytes
    end
    local name = invalid and escape_invalid(bytes, invalid) or bytes
    return cut(name, CUT_BYTES) .. "~" .. md5(bytes)
end

-- The central counts brackets and commas before it parses a text, also those within names. As
-- escapes they do not count: else a few odd names would fill a frame.
local COUNTED = {["["] = true, ["{"] = true, [","] = true}
local ESCAPES, IS_ESCAPED = {}, ffi.new("bool[256]")
for code = 0, 127 do
    local character = char(code)
    local encoded = sub(json.encode_string(character), 2, -2)
    if encoded ~= character or COUNTED[character] then
        ESCAPES[character] = COUNTED[character] and format("\\u%04x", code) or encoded
        IS_ESCAPED[code] = true
    end
end

--- A name as it stands between quotes.
local function escape_name(name)
    for i = 1, #name do
        if IS_ESCAPED[byte(name, i)] then
            return (gsub(name, ".", ESCAPES))
        end
    end
    return name
end

-- The report.

local Report = {}
Report.__index = Report

--- A report without lines, of a table with the fields of the page (but `sent`: see `text`).
--
-- `objects`, `values`, `lines` and `bytes` are what the frame has so far, as the central counts it.
function protocol.new_report(fields)
    local fault = find_fault(fields, REPORT_FIELDS)
    if fault then
        error(fault, 2)
    end
    local head = format(
        ',"node":"%s","boot":%d,"sequence":%d,"since":%d,"epoch":%d,"slot":%d,"leaving":%s,'
            .. '"settled_slot":%d,"lines":{',
        escape_name(fields.node), fields.boot, fields.sequence, fields.since, fields.epoch, fields.slot,
        tostring(fields.leaving or false), fields.settled_slot or -1
    )
    return setmetatable({
        objects = 3,
        values = 9,
        lines = 0,
        bytes = #head + 64,
        _head = head,
        _body = nil, -- the text after `sent`, once it was asked for
        _services = {}, -- names, in the order of their first lines
        _parts = {}, -- by service: pieces of text, `count` of them, and the `user` of the last
        _starts = {}, -- of lines, by resource
    }, Report)
end

local function find_line_fault(service, user, resource, ...)
    local consumed, rejected, requests, settled, held, granted, returned = ...
    local fault = find_fault(
        {
            service = service, user = user, resource = resource, consumed = consumed,
            rejected = rejected, requests = requests, settled = settled, held = held,
            granted = granted, returned = returned,
        },
        {
            {"service", is_service, SERVICE},
            {"user", is_name, NAME},
            {"resource", is_name, NAME},
            {"consumed", is_amount, AMOUNT},
            {"rejected", is_count, COUNT},
            {"requests", is_count, COUNT},
            {"settled", is_amount, AMOUNT},
            {"held", is_amount, AMOUNT},
            {"granted", is_amount, AMOUNT},
            {"returned", is_amount, AMOUNT},
        }
    )
    if fault then
        return fault
    elseif settled > consumed then
        return describe("settled", settled, format("at most consumed, which is %.17g", consumed))
    elseif returned > granted then
        return describe("returned", returned, format("at most granted, which is %.17g", granted))
    end
    return nil
end

local function open_service(report, service)
    local parts = {count = 0, user = nil}
    report._parts[service] = parts
    report._services[#report._services + 1] = service
    report.objects = report.objects + 1
    report.bytes = report.bytes + #escape_name(service) + 8
    return parts
end

--- Add a line. The lines of one user come one after the other; services may alternate.
function Report:add(
    service, user, resource, consumed, rejected, requests, settled, held, granted, returned
)
    if not (is_service(service) and is_name(user) and is_name(resource)
        and is_amount(consumed) and is_count(rejected) and is_count(requests)
        and is_amount(settled) and settled <= consumed and is_amount(held)
        and is_amount(granted) and is_amount(returned) and returned <= granted) then
        error(find_line_fault(
            service, user, resource, consumed, rejected, requests, settled, held, granted, returned
        ), 2)
    end
    local parts = self._parts[service] or open_service(self, service)
    local start = self._starts[resource]
    if not start then
        start = '"' .. escape_name(resource) .. '":['
        self._starts[resource] = start
    end
    local count, size = parts.count, #start
    if user == parts.user then
        parts[count + 1] = ","
        count, size = count + 1, size + 1
    else
        local name = escape_name(user)
        parts[count + 1] = count > 0 and '},"' or '"'
        parts[count + 2] = name
        parts[count + 3] = '":{'
        count, size = count + 3, size + #name + 6
        parts.user = user
        self.objects = self.objects + 1
    end
    -- %.17g writes a whole number as it is, and any other one to the last bit.
    local numbers = format("%.17g,%d,%d,%.17g,%.17g", consumed, rejected, requests, settled, held)
    local credit = "]"
    if granted > 0 then
        credit = format(",%.17g,%.17g]", granted, returned)
        self.values = self.values + 2
    end
    parts[count + 1] = start
    parts[count + 2] = numbers
    parts[count + 3] = credit
    parts.count = count + 3
    self.objects = self.objects + 1
    self.values = self.values + LINE_VALUES - 2
    self.lines = self.lines + 1
    self.bytes = self.bytes + size + #numbers + #credit
    self._body = nil
end

--- Whether another line might be too much for the central: what is left goes into the next report.
function Report:is_full()
    return self.lines >= MAX_LINES
        or self.objects + LINE_OBJECTS > MAX_OBJECTS
        or self.values + LINE_VALUES > MAX_VALUES
        or self.bytes + LINE_BYTES > MAX_BYTES
        or #self._services >= MAX_SERVICES
end

--- The frame. Only `sent` is filled in when it is called again, and nothing was added.
function Report:text(sent)
    if not is_time(sent) then
        error(describe("sent", sent, TIME), 2)
    end
    if not self._body then
        local services = {}
        for i = 1, #self._services do
            local service = self._services[i]
            local parts = self._parts[service]
            services[i] = '"' .. escape_name(service) .. '":{' .. concat(parts, "", 1, parts.count) .. "}}"
        end
        self._body = self._head .. concat(services, ",") .. "}}}"
    end
    return '{"report":{"sent":' .. encode_number(sent) .. self._body
end

-- The ask.

--- Check a credit and append its text to `parts`.
local function put_credit(parts, resource, credit)
    local granted, returned, used, cost = credit[1], credit[2], credit[3], credit[4]
    if not (is_name(resource) and is_amount(granted) and is_amount(returned)
        and returned <= granted and is_amount(used) and is_amount(cost)) then
        error(format(
            "the credit of %s is [%s, %s, %s, %s], expected amounts from 0 to 1e18, returned at most granted",
            show(resource), show(granted), show(returned), show(used), show(cost)
        ), 0)
    end
    local count = #parts
    parts[count + 1] = escape_name(resource)
    parts[count + 2] = format('":[%.17g,%.17g,%.17g,%.17g]', granted, returned, used, cost)
end

--- The text of one user's ask in pieces, and how many credits it has.
local function encode_user_ask(user, user_ask)
    if not is_name(user) then
        error(describe("a user", user, NAME), 0)
    elseif not is_asked(user_ask.requests) then
        error(describe("requests", user_ask.requests, ASKED), 0)
    end
    local parts, count = {'"', escape_name(user), format('":{"requests":%d', user_ask.requests)}, 0
    for resource, credit in pairs(user_ask.resources or {}) do
        parts[#parts + 1] = count == 0 and ',"resources":{"' or ',"'
        put_credit(parts, resource, credit)
        count = count + 1
    end
    if count > MAX_RESOURCES then
        error(format("the number of resources is %d, expected at most %d", count, MAX_RESOURCES), 0)
    end
    parts[#parts + 1] = count > 0 and "}" or ""
    parts[#parts + 1] = user_ask.waits and ',"waits":true}' or "}"
    return parts, count
end

local function new_ask_frame(head)
    return {
        head = head, parts = {}, service = nil,
        services = 0, users = 0, credits = 0, objects = 3, bytes = #head + 4,
    }
end

--- Add a user, with `count` credits, if the central takes a frame with so much; whether it does.
local function add_user_ask(frame, service, user_parts, count)
    local services, objects = frame.services, frame.objects + (count > 0 and count + 2 or 1)
    local start = ","
    if service ~= frame.service then
        start = (frame.service and '},"' or '"') .. escape_name(service) .. '":{'
        services, objects = services + 1, objects + 1
    end
    local bytes = frame.bytes + #start
    for i = 1, #user_parts do
        bytes = bytes + #user_parts[i]
    end
    if services > MAX_SERVICES or frame.users + 1 > MAX_ASKED or frame.credits + count > MAX_LINES
        or objects > MAX_OBJECTS or bytes > MAX_BYTES then
        return false
    end
    local parts = frame.parts
    local size = #parts
    parts[size + 1] = start
    for i = 1, #user_parts do
        parts[size + 1 + i] = user_parts[i]
    end
    frame.service, frame.services, frame.objects, frame.bytes = service, services, objects, bytes
    frame.users, frame.credits = frame.users + 1, frame.credits + count
    return true
end

local function ask_frame_text(frame)
    return frame.head .. concat(frame.parts) .. "}}}}"
end

--- An ask as a list of texts: one, or several if it has more than the central takes in a frame. They
-- have the same `sent`. Without users there is none.
--
-- `ask` is {node, boot, sent, users}, where users[service][user] is {requests, waits, resources} and
-- resources[resource] a credit: {granted, returned, used, cost}.
function protocol.encode_ask(ask)
    local fault = find_fault(ask, ASK_FIELDS)
    if fault then
        error(fault, 2)
    end
    local head = format(
        '{"ask":{"node":"%s","boot":%d,"sent":%s,"users":{',
        escape_name(ask.node), ask.boot, encode_number(ask.sent)
    )
    local texts, frame = {}, new_ask_frame(head)
    for service, users in pairs(ask.users) do
        if not is_service(service) then
            error(describe("a service", service, SERVICE), 2)
        end
        for user, user_ask in pairs(users) do
            local parts, count = encode_user_ask(user, user_ask)
            if not add_user_ask(frame, service, parts, count) then
                texts[#texts + 1] = ask_frame_text(frame)
                frame = new_ask_frame(head)
                add_user_ask(frame, service, parts, count)
            end
        end
    end
    if frame.users > 0 then
        texts[#texts + 1] = ask_frame_text(frame)
    end
    return texts
end

-- The classic protocol.

--- Append an object of tables in tables, `depth` of them, with numbers at the end.
local function put_counts(parts, counts, depth)
    local start = '{"'
    for name, value in pairs(counts) do
        parts[#parts + 1] = start
        parts[#parts + 1] = escape_name(name)
        parts[#parts + 1] = '":'
        if depth > 1 then
            put_counts(parts, value, depth - 1)
        else
            parts[#parts + 1] = encode_number(value)
        end
        start = ',"'
    end
    parts[#parts + 1] = start == ',"' and "}" or "{}"
end

--- A report of the classic protocol. The counts are tables: service -> user -> resource -> number.
function protocol.encode_classic_report(node_id, slot_number, consumption, rejection)
    local parts = {
        format('{"node_id":"%s","slot_number":%d,"consumption":', escape_name(node_id), slot_number),
    }
    put_counts(parts, consumption, 3)
    parts[#parts + 1] = ',"rejection":'
    put_counts(parts, rejection, 3)
    parts[#parts + 1] = "}"
    return concat(parts)
end

--- Decode the answer to a classic report: service -> slot number -> user -> resource -> amount; or nil
-- and what is wrong, which may be an error that the central has answered with.
function protocol.decode_classic_quota(text, pause)
    local message, fault = decode_object(text, pause, MAX_QUOTA_VALUES)
    if not message then
        return nil, fault
    elseif type(message.error_code) == "string" then
        return nil, message.error_code .. ": " .. tostring(message.error_message)
    end
    local services, step = {}, pacer(pause)
    for service, slots in next, message do
        if not is_service(service) then
            return nil, describe("a service", service, SERVICE)
        elseif not is_object(slots) then
            return nil, describe("a service", slots, OBJECT)
        end
        services[service] = {}
        for slot, users in next, slots do
            local number = find(slot, "^%d+$") and tonumber(slot)
            if not is_count(number) then
                return nil, describe("a slot", slot, COUNT)
            end
            fault = find_users_fault(users, find_amount_fault, step)
            if fault then
                return nil, format("%s (service %s)", fault, show(service))
            end
            services[service][number] = users
        end
    end
    return services
end

return protocol
