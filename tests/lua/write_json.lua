-- Writes JSON, for tests alone: an empty table is an object, unless it was marked as an array.

local json = require "throttle.json"

local write_json = {}
local is_array = setmetatable({}, { __mode = "k" })
local is_object = setmetatable({}, { __mode = "k" })

function write_json.array(list)
    is_array[list] = true
    return list
end

function write_json.object(map)
    is_object[map] = true
    return map
end

function write_json.text(value)
    if value == json.null then
        return "null"
    end
    if type(value) == "number" then
        return json.encode_number(value)
    end
    if type(value) == "string" then
        return json.encode_string(value)
    end
    if type(value) ~= "table" then
        return tostring(value)
    end
    local parts = {}
    if is_array[value] or (#value > 0 and not is_object[value]) then
        for i, each in ipairs(value) do
            parts[i] = write_json.text(each)
        end
        return "[" .. table.concat(parts, ",") .. "]"
    end
    for key, each in pairs(value) do
        parts[#parts + 1] = json.encode_string(tostring(key)) .. ":" .. write_json.text(each)
    end
    return "{" .. table.concat(parts, ",") .. "}"
end

return write_json
