--- The options of a node, checked: each with its default, or a message that says what is wrong.

local json = require "throttle.json"

local options = {}

local MAX_TOKEN_BYTES = 500

local function fail(name, expected, got)
    error({ problem = name .. " must be " .. expected .. ", got " .. tostring(got) })
end

local function check_name(name, value, most)
    if type(value) ~= "string" or #value < 1 or #value > most or value:find("[%z\1-\31\127]")
        or json.find_invalid_utf8(value)
    then
        fail(name, "a name of 1 to " .. most .. " bytes of UTF-8 without control characters", value)
    end
    return value
end

local function check_number(name, value, least, most)
    if type(value) ~= "number" or not (value >= least and value <= most) then
        fail(name, "a number from " .. least .. " to " .. most, value)
    end
    return value
end

local function check_services(services)
    if type(services) ~= "table" or #services == 0 then
        fail("active_services", "an array of one or more names", services)
    end
    if #services > 64 then
        fail("active_services", "at most 64 names", #services)
    end
    local checked = {}
    for i, service in ipairs(services) do
        checked[i] = check_name("active_services", service, 50)
    end
    return checked
end

--- A central as {name, host, port, tls}: from "host", "host:port", "[::1]:port" or a URL.
local function parse_central(text, port, tls)
    if type(text) ~= "string" then
        fail("centrals", "an array of hosts or URLs", text)
    end
    local scheme, rest = text:match("^(%a+)://(.*)$")
    if scheme and scheme ~= "ws" and scheme ~= "wss" then
        fail("centrals", "hosts, or URLs of ws:// or wss://", text)
    end
    rest = (rest or text):gsub("/$", "")
    local host, given = rest:match("^(%[[%x:.]+%]):?(%d*)$")
    if not host then
        host, given = rest:match("^([%w._-]+):?(%d*)$")
    end
    if not host then
        fail("centrals", "hosts, host:port, or URLs without a path", text)
    end
    local number = given ~= "" and tonumber(given) or port
    if number < 1 or number > 65535 then
        fail("centrals", "hosts with a port from 1 to 65535", text)
    end
    local is_secure = scheme == "wss" or (not scheme and tls ~= nil)
    return {
        name = (is_secure and "wss://" or "ws://") .. host .. ":" .. number,
        host = host,
        port = number,
        tls = is_secure and (tls or {}) or nil,
    }
end

--- The centrals of a list; an error if one of them is wrong or there are none.
function options.parse_centrals(list, port, tls)
    if type(list) == "string" then
        list = { list }
    end
    if type(list) ~= "table" or #list == 0 then
        fail("centrals", "an array of one or more hosts or URLs", list)
    end
    local centrals, seen = {}, {}
    for _, text in ipairs(list) do
        local central = parse_central(text, port, tls)
        if not seen[central.name] then
            seen[central.name] = true
            centrals[#centrals + 1] = central
        end
    end
    return centrals
end

local function check_tls(tls)
    if tls == nil or tls == false then
        return nil
    end
    if tls == true then
        return {}
    end
    if type(tls) ~= "table" then
        fail("tls", "true, or a table with verify and server_name", tls)
    end
    for name in pairs(tls) do
        if name ~= "verify" and name ~= "server_name" then
            fail("tls", "true, or a table with verify and server_name", name)
        end
    end
    return tls
end

local function read_token(opts)
    local token = opts.token
    if opts.token_file then
        local file, err = io.open(opts.token_file, "rb")
        if not file then
            error({ problem = "cannot read token_file: " .. err })
        end
        token = file:read(MAX_TOKEN_BYTES + 64):gsub("^%s+", ""):gsub("%s+$", "")
        file:close()
    end
    if token ~= nil and (type(token) ~= "string" or #token > MAX_TOKEN_BYTES or not token:find("^[!-~]+$")) then
        fail("token", "1 to 500 printable ASCII characters without spaces", "one that is not")
    end
    return token
end

local function check_fallback(fallback)
    if fallback == nil then
        return nil
    end
    local count = 0
    for resource, rate in pairs(type(fallback) == "table" and fallback or {}) do
        check_name("fallback", resource, 200)
        check_number("fallback", rate, 0, 1e18)
        count = count + 1
    end
    if count < 1 or count > 8 then
        fail("fallback", "units per second of 1 to 8 resources, or nil", fallback)
    end
    return fallback
end

local KNOWN = {
    active_services = true, shared_dict_name = true, get_central_ips = true, centrals = true,
    central_port = true, node_id = true, token = true, token_file = true, tls = true, slot_seconds = true,
    max_users = true, fallback = true, memory = true,
}

local function check(opts)
    if type(opts) ~= "table" then
        fail("init's options", "a table", opts)
    end
    for name in pairs(opts) do
        if not KNOWN[name] then
            error({ problem = "unknown option " .. tostring(name) })
        end
    end
    local port = check_number("central_port", opts.central_port or 7411, 1, 65535)
    local tls = check_tls(opts.tls)
    if opts.get_central_ips == nil and opts.centrals == nil then
        error({ problem = "centrals or get_central_ips must be given" })
    end
    if opts.get_central_ips ~= nil and type(opts.get_central_ips) ~= "function" then
        fail("get_central_ips", "a function that returns an array of addresses", opts.get_central_ips)
    end
    return {
        services = check_services(opts.active_services),
        shared_dict_name = opts.shared_dict_name and check_name("shared_dict_name", opts.shared_dict_name, 200),
        get_central_ips = opts.get_central_ips,
        centrals = opts.centrals and options.parse_centrals(opts.centrals, port, tls),
        central_port = port,
        tls = tls,
        node_id = check_name("node_id", opts.node_id, 200),
        token = read_token(opts),
        slot_seconds = check_number("slot_seconds", opts.slot_seconds or 1, 0.1, 3600),
        max_users = check_number("max_users", opts.max_users or 100000, 1, 10000000),
        fallback = check_fallback(opts.fallback),
        memory = opts.memory and check_name("memory", opts.memory, 200),
    }
end

--- The options with their defaults; or nil and what is wrong.
function options.check(opts)
    local done, result = pcall(check, opts)
    if done then
        return result
    end
    return nil, type(result) == "table" and result.problem or tostring(result)
end

--- As `parse_centrals`, for a list that came at run time: nil and what is wrong.
function options.try_centrals(list, port, tls)
    local done, result = pcall(options.parse_centrals, list, port, tls)
    if done then
        return result
    end
    return nil, type(result) == "table" and result.problem or tostring(result)
end

return options
