--- Runs each line of its input as a Lua chunk, and answers each with one line of JSON.
--
-- A chunk sees `json` and `protocol`. The answer is [true, results...] or [false, error]. Strings are in
-- hex and numbers in C's %a, so that neither depends on the code that is tested:
--
--     nil, true, false   null, true, false
--     a number           {"number": "0x1.8p+1"}
--     a string           {"text": "616e6e"}
--     json.null          {"null": true}
--     a list of JSON     [...]
--     another table      {"table": [[key, value], ...]}
--
-- The argument is the folder that has throttle/.

package.path = arg[1] .. "/?.lua;" .. package.path

local json = require "throttle.json"
local protocol = require "throttle.protocol"

local environment = setmetatable({json = json, protocol = protocol}, {__index = _G})

local HEX = {}
for code = 0, 255 do
    HEX[string.char(code)] = ("%02x"):format(code)
end

local function to_hex(text)
    return (text:gsub(".", HEX))
end

local function show(value)
    if value == json.null then
        return '{"null":true}'
    elseif type(value) == "number" then
        return ('{"number":"%s"}'):format(("%a"):format(value))
    elseif type(value) == "string" then
        return '{"text":"' .. to_hex(value) .. '"}'
    elseif type(value) ~= "table" then
        return value == nil and "null" or tostring(value)
    end
    local parts = {}
    if getmetatable(value) == json.array then
        for i, item in ipairs(value) do
            parts[i] = show(item)
        end
        return "[" .. table.concat(parts, ",") .. "]"
    end
    for key, item in pairs(value) do
        parts[#parts + 1] = "[" .. show(key) .. "," .. show(item) .. "]"
    end
    return '{"table":[' .. table.concat(parts, ",") .. "]}"
end

local function answer(...)
    local parts = {}
    for i = 1, select("#", ...) do
        parts[i] = show((select(i, ...)))
    end
    return "[" .. table.concat(parts, ",") .. "]"
end

for line in io.lines() do
    local chunk, fault = loadstring(line)
    if chunk then
        io.write(answer(pcall(setfenv(chunk, environment))), "\n")
    else
        io.write(answer(false, fault), "\n")
    end
    io.flush()
end
