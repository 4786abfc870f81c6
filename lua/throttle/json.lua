--- JSON (RFC 8259): a strict decoder that can pause, and the encoding of strings and numbers.
--
-- A Quota of 50,000 users has 4 MB. To decode it takes 100 ms, in which a worker of nginx would
-- serve nobody: so `decode` calls `pause` every few hundred values, and the caller lets requests run
-- there. For the same reason it is one loop with its own stack and no state outside of it: several
-- coroutines may be decoding at once.
--
-- lua-cjson was turned down. It decodes a text in one step, at half the speed, and writes 14 digits of
-- a number: totals need all 17.
--
-- The text is read through a pointer. LuaJIT ends each string with a zero byte, which is valid nowhere
-- in JSON, so every scan stops there and none has to look at the length.

local ffi = require "ffi"

local concat, format, gsub, sub = table.concat, string.format, string.gsub, string.sub
local char, find = string.char, string.find
local ffi_cast, ffi_string = ffi.cast, ffi.string
local setmetatable, tonumber = setmetatable, tonumber

-- Under a name of our own: another module may have declared strtod with other types.
ffi.cdef [[double throttle_strtod(const uint8_t *, const uint8_t **) __asm__("strtod");]]
local number_end = ffi.new("const uint8_t *[1]")

local VALUES_BETWEEN_PAUSES = 500
local MAX_VALUES = 1000000
local MAX_DEPTH = 16
local MAX_WHOLE = 2 ^ 53
local HUGE = math.huge
-- With at most this many digits the significand is exact, and so is the power of ten: their quotient
-- is the nearest double. Longer ones are left to `tonumber`.
local EXACT_DIGITS = 15
local POWERS_OF_TEN = ffi.new("double[?]", EXACT_DIGITS + 1)
for exponent = 0, EXACT_DIGITS do
    POWERS_OF_TEN[exponent] = 10 ^ exponent
end

local TAB, LINE_FEED, RETURN, SPACE = 9, 10, 13, 32
local QUOTE, BACKSLASH, COMMA, COLON, MINUS, PLUS, DOT = 34, 92, 44, 58, 45, 43, 46
local ZERO, NINE, UPPER_E, LOWER_E = 48, 57, 69, 101
local OPEN_LIST, CLOSE_LIST, OPEN_OBJECT, CLOSE_OBJECT = 91, 93, 123, 125
local LOWER_F, LOWER_N, LOWER_T, LOWER_U = 102, 110, 116, 117

local json = {
    -- What `null` is decoded to: a table cannot hold nil.
    null = setmetatable({}, {__tostring = function() return "null" end}),
    -- The metatable of lists. Without it, an empty list would look like an empty object.
    array = {},
}

local ESCAPED = {
    [QUOTE] = '"', [BACKSLASH] = "\\", [47] = "/", [98] = "\b", [102] = "\f", [110] = "\n",
    [114] = "\r", [116] = "\t",
}

--- The number of bytes of the character at `bytes[at]`, which is not of ASCII; 0 if it is not UTF-8.
local function character_size(bytes, at)
    local first, second = bytes[at], bytes[at + 1]
    if first < 0xC2 or first > 0xF4 or second < 0x80 or second > 0xBF then
        return 0
    elseif first < 0xE0 then
        return 2
    end
    -- Not in more bytes than needed, not a surrogate, not above U+10FFFF.
    if (first == 0xE0 and second < 0xA0) or (first == 0xED and second > 0x9F)
        or (first == 0xF0 and second < 0x90) or (first == 0xF4 and second > 0x8F) then
        return 0
    end
    local third = bytes[at + 2]
    if third < 0x80 or third > 0xBF then
        return 0
    elseif first < 0xF0 then
        return 3
    end
    local fourth = bytes[at + 3]
    return fourth >= 0x80 and fourth <= 0xBF and 4 or 0
end

--- The position of the first byte of `text`, from `first` (1) on, that is not UTF-8; nil if all is.
function json.find_invalid_utf8(text, first)
    local bytes, size = ffi_cast("const uint8_t *", text), #text
    local at = (first or 1) - 1
    while at < size do
        if bytes[at] < 0x80 then
            at = at + 1
        else
            local length = character_size(bytes, at)
            if length == 0 then
                return at + 1
            end
            at = at + length
        end
    end
    return nil
end

local function skip_blanks(bytes, at)
    local byte = bytes[at]
    while byte == SPACE or byte == LINE_FEED or byte == RETURN or byte == TAB do
        at = at + 1
        byte = bytes[at]
    end
    return at
end

local function skip_digits(bytes, at)
    local byte = bytes[at]
    while byte >= ZERO and byte <= NINE do
        at = at + 1
        byte = bytes[at]
    end
    return at
end

--- The four hexadecimal digits at `at` as a number; nil if they are none.
local function read_hex(bytes, at)
    local code = 0
    for here = at, at + 3 do
        local digit = tonumber(char(bytes[here]), 16)
        if not digit then
            return nil
        end
        code = 16 * code + digit
    end
    return code
end

local function encode_utf8(code)
    if code < 0x80 then
        return char(code)
    elseif code < 0x800 then
        return char(0xC0 + (code - code % 64) / 64, 0x80 + code % 64)
    end
    local last, rest = 0x80 + code % 64, (code - code % 64) / 64
    if code < 0x10000 then
        return char(0xE0 + (rest - rest % 64) / 64, 0x80 + rest % 64, last)
    end
    local third, high = 0x80 + rest % 64, (rest - rest % 64) / 64
    return char(0xF0 + (high - high % 64) / 64, 0x80 + high % 64, third, last)
end

--- What the escape at `at` stands for and the offset after it; nil and what was expected.
local function read_escape(bytes, at)
    local kind = bytes[at + 1]
    if kind ~= LOWER_U then
        local character = ESCAPED[kind]
        if not character then
            return nil, "an escape of JSON"
        end
        return character, at + 2
    end
    local code = read_hex(bytes, at + 2)
    if not code then
        return nil, "four hexadecimal digits"
    elseif code < 0xD800 or code > 0xDFFF then
        return encode_utf8(code), at + 6
    end
    if code < 0xDC00 and bytes[at + 6] == BACKSLASH and bytes[at + 7] == LOWER_U then
        local low = read_hex(bytes, at + 8)
        if low and low >= 0xDC00 and low <= 0xDFFF then
            return encode_utf8(0x10000 + (code - 0xD800) * 0x400 + low - 0xDC00), at + 12
        end
    end
    return nil, "a pair of surrogates"
end

--- The rest of a string whose bytes from `first` to before `at` are plain. Returns as `read_string`.
local function read_rest(bytes, first, at)
    local parts, count = {}, 0
    while true do
        local byte = bytes[at]
        if byte == QUOTE then
            parts[count + 1] = ffi_string(bytes + first, at - first)
            return concat(parts), at + 1
        elseif byte == BACKSLASH then
            local character, after = read_escape(bytes, at)
            if not character then
                return nil, at, after
            end
            parts[count + 1] = ffi_string(bytes + first, at - first)
            parts[count + 2] = character
            count = count + 2
            first, at = after, after
        elseif byte < SPACE then
            return nil, at, "the end of the string, without control characters"
        else
            local size = byte < 0x80 and 1 or character_size(bytes, at)
            if size == 0 then
                return nil, at, "UTF-8"
            end
            at = at + size
        end
    end
end

--- The string whose quote is at `at`, and the offset after it; or nil, where, and what was expected.
local function read_string(bytes, at)
    local first = at + 1
    at = first
    local byte = bytes[at]
    while byte >= SPACE and byte < 0x80 and byte ~= QUOTE and byte ~= BACKSLASH do
        at = at + 1
        byte = bytes[at]
    end
    if byte == QUOTE then
        return ffi_string(bytes + first, at - first), at + 1
    end
    return read_rest(bytes, first, at)
end

--- The key at `at` and the offset of its value; or nil, where, and what was expected.
local function read_key(bytes, at)
    if bytes[at] ~= QUOTE then
        return nil, at, "a key in quotes"
    end
    local key, after, expected = read_string(bytes, at)
    if not key then
        return nil, after, expected
    end
    after = skip_blanks(bytes, after)
    if bytes[after] ~= COLON then
        return nil, after, "a colon"
    end
    return key, skip_blanks(bytes, after + 1)
end

--- The number at `at` and the offset after it; or nil, where, and what was expected.
local function read_number(bytes, at)
    local first, digits = at, at
    if bytes[at] == MINUS then
        digits = at + 1
    end
    local significand, byte = 0, bytes[digits]
    at = digits
    while byte >= ZERO and byte <= NINE do
        significand = 10 * significand + (byte - ZERO)
        at = at + 1
        byte = bytes[at]
    end
    local size, decimals = at - digits, 0
    if size == 0 then
        return nil, first, "a value"
    elseif size > 1 and bytes[digits] == ZERO then
        return nil, first, "a number without leading zeros"
    end
    if byte == DOT then
        local fraction = at + 1
        at = fraction
        byte = bytes[at]
        while byte >= ZERO and byte <= NINE do
            significand = 10 * significand + (byte - ZERO)
            at = at + 1
            byte = bytes[at]
        end
        decimals = at - fraction
        if decimals == 0 then
            return nil, at, "a digit after the point"
        end
    end
    local has_exponent = byte == LOWER_E or byte == UPPER_E
    if not has_exponent and size + decimals <= EXACT_DIGITS then
        local value = significand / POWERS_OF_TEN[decimals]
        return digits > first and -value or value, at
    elseif has_exponent then
        local sign = bytes[at + 1]
        local exponent = (sign == PLUS or sign == MINUS) and at + 2 or at + 1
        at = skip_digits(bytes, exponent)
        if at == exponent then
            return nil, at, "a digit of the exponent"
        end
    end
    local value = ffi.C.throttle_strtod(bytes + first, number_end)
    if number_end[0] ~= bytes + at then -- somebody has set a locale with another decimal point
        value = tonumber(ffi_string(bytes + first, at - first))
    end
    if value == HUGE or value == -HUGE then
        return nil, first, "a number that a double can hold"
    end
    return value, at
end

--- The value at `at`, which is not an object or a list, and the offset after it; or as `read_number`.
local function read_scalar(text, bytes, at)
    local byte = bytes[at]
    if byte == QUOTE then
        return read_string(bytes, at)
    elseif byte == LOWER_T and sub(text, at + 1, at + 4) == "true" then
        return true, at + 4
    elseif byte == LOWER_F and sub(text, at + 1, at + 5) == "false" then
        return false, at + 5
    elseif byte == LOWER_N and sub(text, at + 1, at + 4) == "null" then
        return json.null, at + 4
    end
    return read_number(bytes, at)
end

local function fail(text, at, expected)
    local found = "the end"
    if at < #text then
        -- ASCII alone: the message goes into logs, and into the reason of a close.
        found = format("'%s'", (gsub(sub(text, at + 1, at + 20), "[^\32-\126]", "?")))
    end
    return nil, format("invalid JSON at byte %d: got %s, expected %s", at + 1, found, expected)
end

--- Decode a text; returns its value, or nil and what is wrong, with the position.
--
-- Objects and lists become tables, lists with the metatable `json.array`; null becomes `json.null`.
-- Of a key that comes twice the later value counts. `opts`, all optional:
--   pause        a function that is called about every 500 values; it may yield
--   max_values   the most values, objects and lists included, that a text may have (1,000,000)
--   max_depth    the most levels of objects and lists (16)
function json.decode(text, opts)
    opts = opts or {}
    local pause = opts.pause
    local max_values, max_depth = opts.max_values or MAX_VALUES, opts.max_depth or MAX_DEPTH
    local bytes = ffi_cast("const uint8_t *", text)
    -- The tables that are open, each with the key under which the next value goes: the stack has
    -- those around `container`. The outermost one is ours and gets the value of the whole text.
    local containers, keys, closes, depth = {}, {}, {}, 0
    local root = {}
    local container, key, close = root, 1, -1
    local values, pause_at = 0, VALUES_BETWEEN_PAUSES
    local at = skip_blanks(bytes, 0)
    while true do
        local byte = bytes[at]
        local value, after, expected
        local is_open = byte == OPEN_OBJECT or byte == OPEN_LIST
        if is_open then
            value, after = byte == OPEN_OBJECT and {} or setmetatable({}, json.array), at + 1
        else
            value, after, expected = read_scalar(text, bytes, at)
            if value == nil then
                return fail(text, after, expected)
            end
        end
        values = values + 1
        if values > max_values then
            return fail(text, at, format("at most %d values", max_values))
        end
        container[key] = value
        at = skip_blanks(bytes, after)
        local has_next = false
        if is_open then
            if depth >= max_depth then
                return fail(text, after - 1, format("at most %d levels", max_depth))
            end
            depth = depth + 1
            containers[depth], keys[depth], closes[depth] = container, key, close
            container, key = value, 0
            close = byte == OPEN_OBJECT and CLOSE_OBJECT or CLOSE_LIST
            has_next = bytes[at] ~= close
        end
        while not has_next do
            if depth == 0 then
                if at < #text then
                    return fail(text, at, "the end")
                end
                return root[1]
            elseif bytes[at] == COMMA then
                at = skip_blanks(bytes, at + 1)
                has_next = true
            elseif bytes[at] == close then
                container, key, close = containers[depth], keys[depth], closes[depth]
                depth = depth - 1
                at = skip_blanks(bytes, at + 1)
            else
                return fail(text, at, close == CLOSE_LIST and "a comma or ]" or "a comma or }")
            end
        end
        if close == CLOSE_LIST then
            key = key + 1
        else
            key, at, expected = read_key(bytes, at)
            if not key then
                return fail(text, at, expected)
            end
        end
        if values >= pause_at then
            pause_at = values + VALUES_BETWEEN_PAUSES
            if pause then
                pause()
            end
        end
    end
end

local ESCAPES = {['"'] = '\\"', ["\\"] = "\\\\"}
for code = 0, 31 do
    ESCAPES[char(code)] = format("\\u%04x", code)
end
ESCAPES[char(127)] = "\\u007f"

--- A string as JSON. It must be UTF-8: its bytes are not checked.
function json.encode_string(text)
    if find(text, '[%c"\\]') then
        text = gsub(text, '[%c"\\]', ESCAPES)
    end
    return '"' .. text .. '"'
end

--- A number as JSON, from which the very same number is read. NaN and infinity are errors.
function json.encode_number(number)
    if number % 1 == 0 and number > -MAX_WHOLE and number < MAX_WHOLE then
        return format("%d", number)
    elseif number ~= number or number == HUGE or number == -HUGE then
        error(format("invalid number: got %s, expected a finite one", number), 2)
    end
    return format("%.17g", number)
end

return json
