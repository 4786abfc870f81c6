--- A websocket client (RFC 6455) on cosockets.
--
-- A connection belongs to the request or timer that opened it, as its cosocket does. One light
-- thread may be in `receive` while others send.
--
-- A deadline holds for the whole call. The time-out of a cosocket does not: it begins anew with
-- every byte. So bytes are read as they come (`receiveany`) into a buffer of our own, which also
-- keeps the first part of a frame when a call times out in the middle of it.
--
-- The configuration of nginx needs
-- - lua_ssl_trusted_certificate for TLS with `verify`, and a lua_ssl_verify_depth above 1 if there
--   are intermediate certificates. nginx compares `server_name` with the DNS names of a certificate
--   only, so a server that is reached by its IP address needs a `server_name`;
-- - resolver, with a short resolver_timeout, if a host is a name: its resolution is not part of the
--   deadline;
-- - lua_socket_log_errors off, or every time-out of `receive` is logged as an error.

local bit = require "bit"
local ffi = require "ffi"
local semaphore = require "ngx.semaphore"
local time = require "resty.core.time"

local band, bxor, rshift = bit.band, bit.bxor, bit.rshift
local byte, char, find, gsub, sub = string.byte, string.char, string.find, string.gsub, string.sub
local cast, copy, new = ffi.cast, ffi.copy, ffi.new
local max, min = math.max, math.min
local concat = table.concat

local websocket = {}
local Connection = {}
Connection.__index = Connection

local CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0, 1, 2, 8, 9, 10
local KINDS = { [TEXT] = "text", [BINARY] = "binary" }
local KEY_SUFFIX = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11" -- of RFC 6455
local TOKEN = "[%w!#$%%&'*+.^_`|~-]+"
local MAX_RESPONSE_BYTES = 16384
local MAX_FRAME_BYTES = 16777216
local MAX_REASON_BYTES = 123 -- a control frame has at most 125, two of them for the code
local READ_BYTES = 65536 -- lua_socket_buffer_size may be less
local CONNECT_SECONDS = 10
local SEND_SECONDS = 10 -- without any progress
local CLOSE_SECONDS = 1
-- A cosocket cannot be closed while a light thread reads from it. So a wait is cut into slices, after
-- each of which the reader looks whether another one has closed the connection.
local SLICE_SECONDS = 2

-- The cached time of nginx would stand still while a peer sends as fast as we read.
local function now()
    ngx.update_time()
    return time.monotonic_time()
end

local random_lot, random_used = "", 0

--- Bytes of /dev/urandom, which is read in lots. None is read before a worker needs it, or all
-- workers would be forked with the same lot.
local function random_bytes(count)
    if random_used + count > #random_lot then
        local file = assert(io.open("/dev/urandom", "rb"))
        random_lot, random_used = assert(file:read(4096)), 0
        file:close()
    end
    random_used = random_used + count
    return sub(random_lot, random_used - count + 1, random_used)
end

-- A frame is built with its payload aligned, for masking by words, and room in front for the header.
local PAYLOAD_AT, WORD_BYTES, SCRATCH_BYTES = 16, 8, 65536
local scratch = new("uint8_t[?]", PAYLOAD_AT + SCRATCH_BYTES + WORD_BYTES)

--- A whole message as one masked frame.
local function encode_frame(opcode, payload)
    local size = #payload
    local length
    if size < 126 then
        length = char(0x80 + size)
    elseif size < 65536 then
        length = char(0x80 + 126, rshift(size, 8), band(size, 255))
    else -- a string of LuaJIT has less than 2^31 bytes
        length = char(0x80 + 127, 0, 0, 0, 0,
            rshift(size, 24), band(rshift(size, 16), 255), band(rshift(size, 8), 255), band(size, 255))
    end
    local mask = random_bytes(4)
    local header = char(0x80 + opcode) .. length .. mask
    local frame = size <= SCRATCH_BYTES and scratch or new("uint8_t[?]", PAYLOAD_AT + size + WORD_BYTES)
    local words = cast("uint64_t *", frame + PAYLOAD_AT)
    copy(words, mask .. mask, WORD_BYTES)
    local mask_word = words[0]
    copy(words, payload, size)
    for i = 0, rshift(size + WORD_BYTES - 1, 3) - 1 do
        words[i] = bxor(words[i], mask_word)
    end
    local start = frame + PAYLOAD_AT - #header
    copy(start, header, #header)
    return ffi.string(start, #header + size)
end

--- The payload of a close frame.
local function encode_close(code, reason)
    local last = min(#reason, MAX_REASON_BYTES)
    while last < #reason and last > 0 and band(byte(reason, last + 1), 0xC0) == 0x80 do
        last = last - 1 -- a character must not be cut in two
    end
    return char(rshift(code, 8), band(code, 255)) .. sub(reason, 1, last)
end

-- By the first byte of a character beyond ASCII: how many bytes follow (0: it is no first byte), and
-- the range of the second, which rules out overlong forms, surrogates and what is above U+10FFFF.
local following, second_from, second_to = new("uint8_t[256]"), new("uint8_t[256]"), new("uint8_t[256]")
for first = 0xC2, 0xF4 do
    following[first] = first < 0xE0 and 1 or first < 0xF0 and 2 or 3
    second_from[first] = first == 0xE0 and 0xA0 or first == 0xF0 and 0x90 or 0x80
    second_to[first] = first == 0xED and 0x9F or first == 0xF4 and 0x8F or 0xBF
end

local function is_utf8(text)
    local bytes, size, i = cast("const uint8_t *", text), #text, 0
    while i < size do
        local first = bytes[i]
        if first >= 0x80 then
            -- A character that is cut off ends here: at the zero byte behind every string.
            local more, second = following[first], bytes[i + 1]
            if more == 0 or second < second_from[first] or second > second_to[first]
                or more > 1 and band(bytes[i + 2], 0xC0) ~= 0x80
                or more > 2 and band(bytes[i + 3], 0xC0) ~= 0x80 then
                return false
            end
            i = i + more + 1
        elseif i + 4 <= size and band(cast("const int32_t *", bytes + i)[0], 0x80808080) == 0 then
            i = i + 4
        else
            i = i + 1
        end
    end
    return true
end

--- Set the time-outs of the cosocket, in seconds. The first is also that of connecting and of TLS.
local function set_timeouts(self, send, read)
    self.send_timeout, self.read_timeout = send, read
    -- 0 ms would be the default of the configuration.
    local send_ms, read_ms = max(1, math.ceil(1000 * send)), max(1, math.ceil(1000 * read))
    self.socket:settimeouts(send_ms, send_ms, read_ms)
end

--- Wait for the next bytes.
local function read_some(self, deadline)
    while true do
        local left = deadline - now()
        if left <= 0 then
            return nil, "timeout"
        end
        set_timeouts(self, self.send_timeout, min(left, SLICE_SECONDS))
        local data, err = self.socket:receiveany(READ_BYTES)
        if self.ended then
            return nil, "ended"
        elseif data or err ~= "timeout" then
            return data, err
        elseif self.send_error then
            -- Not at once: a peer that does not read any more may have said why.
            return nil, self.send_error
        end
    end
end

--- Read exactly `count` bytes. What came before a time-out stays in the buffer.
local function read(self, count, deadline)
    local chunks = self.chunks
    while self.buffered < count do
        local data, err = read_some(self, deadline)
        if not data then
            return nil, err
        end
        chunks[#chunks + 1] = data
        self.buffered = self.buffered + #data
    end
    if count == 0 then
        return ""
    elseif chunks[2] then
        chunks[1] = sub(chunks[1], self.taken + 1)
        chunks = { concat(chunks) }
        self.chunks, self.taken = chunks, 0
    end
    local bytes = sub(chunks[1], self.taken + 1, self.taken + count)
    self.taken, self.buffered = self.taken + count, self.buffered - count
    if self.buffered == 0 then
        self.chunks, self.taken = {}, 0
    end
    return bytes
end

--- Send a frame as soon as those of other light threads are out: true, or nil and err. The error
-- "timeout" is that of this wait: nothing was sent, and the connection is as good as before.
local function send_frame(self, opcode, payload, seconds)
    local lock = self.send_lock
    if not lock:wait(seconds) then
        return nil, "timeout"
    end
    local sent, err = nil, self.send_error or "closed"
    if not self.send_error and (opcode == CLOSE or not self.ended) then
        sent, err = self.socket:send(encode_frame(opcode, payload))
        while sent and self.pong and not self.ended do
            local pong = encode_frame(PONG, self.pong)
            self.pong = nil
            sent, err = self.socket:send(pong)
        end
        if not sent then -- part of the frame may be out, so no other one can follow
            err = "send failed: " .. err
            self.send_error = err
        end
    end
    lock:post()
    if self.ended and lock:count() > 0 then -- else the one that waits for the lock closes it
        self.socket:close()
    end
    if not sent then
        return nil, err
    end
    return true
end

--- End the connection, with a close frame if its payload is given. The other arguments are what
-- `receive` returns from now on. The socket cannot be closed while another light thread reads or
-- writes; that thread closes it then.
local function finish(self, close_payload, err, code, reason)
    if not self.ended then
        self.ended = { err, code, reason }
        self.chunks, self.taken, self.buffered, self.frame, self.message = {}, 0, 0, nil, nil
        if close_payload then
            set_timeouts(self, CLOSE_SECONDS, self.read_timeout)
            send_frame(self, CLOSE, close_payload, CLOSE_SECONDS)
        end
    end
    self.socket:close()
    return nil, self.ended[1], self.ended[2], self.ended[3]
end

--- End the connection for a fault of the peer.
local function fail(self, code, fault)
    return finish(self, encode_close(code, fault), "protocol error: " .. fault)
end

--- Answer a ping. This does not wait for a peer that pings and does not read.
local function answer_ping(self, payload)
    local lock = self.send_lock
    if lock:count() <= 0 then
        self.pong = payload -- the light thread that sends answers the newest ping after its frame
        return
    end
    local thread = ngx.thread.spawn(send_frame, self, PONG, payload, SEND_SECONDS)
    if lock:count() > 0 then
        ngx.thread.wait(thread) -- it has ended; nginx would keep it until the end of the request
    end
end

--- What is wrong with the first two bytes of a frame, or nil.
local function find_fault(first, second, is_in_message)
    local opcode = band(first, 0x0F)
    if band(first, 0x70) ~= 0 then
        return "reserved bits are set"
    elseif band(second, 0x80) ~= 0 then
        return "a frame from a server is masked"
    elseif opcode > PONG or opcode > BINARY and opcode < CLOSE then
        return "unknown opcode " .. opcode
    elseif opcode >= CLOSE and first < 0x80 then
        return "a control frame is fragmented"
    elseif opcode >= CLOSE and second > 125 then
        return "a control frame has more than 125 bytes"
    elseif opcode == CONTINUATION and not is_in_message then
        return "a continuation without a message"
    elseif opcode < CLOSE and opcode ~= CONTINUATION and is_in_message then
        return "a new message before the last one has ended"
    end
end

--- Read the header of a frame: the frame, or nil and err, and a close code if the peer is at fault.
local function receive_header(self, deadline)
    local frame, message = self.frame, self.message
    if not frame then
        local bytes, err = read(self, 2, deadline)
        if not bytes then
            return nil, err
        end
        local first, second = byte(bytes, 1, 2)
        local fault = find_fault(first, second, message ~= nil)
        if fault then
            return nil, fault, 1002
        end
        local length_bytes = second == 126 and 2 or second == 127 and 8 or 0
        frame = { opcode = band(first, 0x0F), is_last = first >= 0x80, size = second, length_bytes = length_bytes }
        self.frame = frame
    end
    if frame.length_bytes > 0 then
        local bytes, err = read(self, frame.length_bytes, deadline)
        if not bytes then
            return nil, err
        elseif #bytes == 8 and byte(bytes) >= 0x80 then
            return nil, "the highest bit of a length is set", 1002
        end
        frame.size, frame.length_bytes = 0, 0
        for i = 1, #bytes do
            frame.size = 256 * frame.size + byte(bytes, i)
        end
    end
    local total = frame.size + (message and message.size or 0)
    if frame.opcode < CLOSE and total > self.max_frame_bytes then
        return nil, "message too big: at least " .. total .. " bytes, limit " .. self.max_frame_bytes, 1009
    end
    return frame
end

--- End the connection as the peer's close frame says.
local function receive_close(self, payload)
    if payload == "" then
        return finish(self, payload, "closed", 1005, "")
    elseif #payload == 1 then
        return fail(self, 1002, "a close frame with one byte")
    end
    local code, reason = 256 * byte(payload, 1) + byte(payload, 2), sub(payload, 3)
    if code < 1000 or code >= 1004 and code <= 1006 or code > 1014 and code < 3000 or code >= 5000 then
        return fail(self, 1002, "invalid close code " .. code)
    elseif not is_utf8(reason) then
        return fail(self, 1007, "the reason of a close frame is not UTF-8")
    end
    return finish(self, encode_close(code, ""), "closed", code, reason)
end

--- Add a frame to its message. Returns the message, as opcode and payload, once it is complete.
local function join(self, frame, payload)
    local message = self.message
    if not message then
        if frame.is_last then
            return frame.opcode, payload
        end
        message = { opcode = frame.opcode, size = 0, parts = {} }
        self.message = message
    end
    if payload ~= "" then
        message.size = message.size + #payload
        message.parts[#message.parts + 1] = payload
    end
    if frame.is_last then
        self.message = nil
        return message.opcode, concat(message.parts)
    end
end

local function receive_message(self, deadline)
    while not self.ended do
        local frame, err, code = receive_header(self, deadline)
        local payload
        if frame then
            payload, err = read(self, frame.size, deadline)
        end
        if code then
            return fail(self, code, err)
        elseif not payload and err == "timeout" and not self.ended then
            return nil, "timeout"
        elseif not payload and err == "closed" then
            return finish(self, nil, "closed", 1006, "no close frame")
        elseif not payload then
            return finish(self, nil, err)
        end
        self.frame = nil
        if frame.opcode == CLOSE then
            return receive_close(self, payload)
        elseif frame.opcode == PING then
            answer_ping(self, payload)
        elseif frame.opcode ~= PONG then
            local opcode, message = join(self, frame, payload)
            if opcode == TEXT and not is_utf8(message) then
                return fail(self, 1007, "a text message is not UTF-8")
            elseif opcode then
                return KINDS[opcode], message
            end
        end
    end
    return finish(self)
end

--- Receive a message: "text" or "binary", and its payload; or nil and
--   "timeout"               `timeout` seconds are over; the connection can be used as before
--   "closed", code, reason  by the peer or by `close`; 1005: without a code, 1006: without a close frame
--   err                     it failed and is closed
function Connection:receive(timeout)
    if self.is_receiving then
        return nil, "another light thread is receiving"
    end
    self.is_receiving = true
    local kind, payload, code, reason = receive_message(self, now() + max(timeout, 0.001))
    self.is_receiving = false
    return kind, payload, code, reason
end

--- Send a message of UTF-8: true, or nil and err. It is out when the kernel has all of it.
function Connection:send_text(text)
    return send_frame(self, TEXT, text, SEND_SECONDS)
end

function Connection:send_binary(bytes)
    return send_frame(self, BINARY, bytes, SEND_SECONDS)
end

--- Close the socket, after a close frame if the peer takes it within a second.
function Connection:close(code, reason)
    code, reason = code or 1000, reason or ""
    finish(self, encode_close(code, reason), "closed", code, reason)
end

--- The request of the handshake and the key in it, or nil and which option is wrong.
local function build_request(opts)
    for _, name in ipairs({ "host", "path", "subprotocol" }) do
        if opts[name] and find(opts[name], "[%c ]") then
            return nil, "invalid " .. name .. ": it has a space or a control character"
        end
    end
    local key = ngx.encode_base64(random_bytes(16))
    local lines = {
        "GET " .. (opts.path or "/") .. " HTTP/1.1",
        "Host: " .. opts.host .. ":" .. opts.port,
        "Upgrade: websocket",
        "Connection: Upgrade",
        "Sec-WebSocket-Version: 13",
        "Sec-WebSocket-Key: " .. key,
    }
    if opts.subprotocol then
        lines[#lines + 1] = "Sec-WebSocket-Protocol: " .. opts.subprotocol
    end
    for name, value in pairs(opts.headers or {}) do
        if not find(name, "^" .. TOKEN .. "$") then
            return nil, "invalid header: its name is not a token"
        elseif find(value, "%c") then -- it may be a secret, so the message does not show it
            return nil, "invalid header " .. name .. ": its value has a control character"
        end
        lines[#lines + 1] = name .. ": " .. value
    end
    return concat(lines, "\r\n") .. "\r\n\r\n", key
end

--- The status line and the headers, by lower-case name. What follows them stays in the buffer.
local function receive_response(self, deadline)
    local head, stop = "", nil
    while not stop do
        local data, err = read_some(self, deadline)
        if not data then
            return nil, err
        end
        head = head .. data
        stop = find(head, "\r\n\r\n", 1, true)
        if (stop or #head) > MAX_RESPONSE_BYTES then
            return nil, "the response has more than " .. MAX_RESPONSE_BYTES .. " bytes"
        end
    end
    local rest = sub(head, stop + 4)
    if rest ~= "" then
        self.chunks, self.buffered = { rest }, #rest
    end
    local lines = string.gmatch(sub(head, 1, stop + 1), "(.-)\r\n")
    local status, headers = lines(), {}
    for line in lines do
        local name, value = string.match(line, "^(" .. TOKEN .. "):[ \t]*(.-)[ \t]*$")
        if not name then
            return nil, "the response has a malformed header"
        end
        name = string.lower(name)
        headers[name] = headers[name] and headers[name] .. "," .. value or value
    end
    return status, headers
end

--- Why a response does not accept the handshake, or nil.
local function find_refusal(status, headers, key, subprotocol)
    local connection = "," .. gsub(string.lower(headers.connection or ""), "[ \t]", "") .. ","
    if not find(status .. " ", "^HTTP/1%.1 101 ") then
        return "refused with " .. gsub(sub(status, 1, 200), "%c", "?")
    elseif string.lower(headers.upgrade or "") ~= "websocket" then
        return "no Upgrade: websocket in the response"
    elseif not find(connection, ",upgrade,", 1, true) then
        return "no Connection: Upgrade in the response"
    elseif headers["sec-websocket-accept"] ~= ngx.encode_base64(ngx.sha1_bin(key .. KEY_SUFFIX)) then
        return "wrong Sec-WebSocket-Accept in the response"
    elseif headers["sec-websocket-extensions"] then
        return "the server chose an extension, but none was offered"
    elseif headers["sec-websocket-protocol"] and headers["sec-websocket-protocol"] ~= subprotocol then
        return "the server chose a subprotocol that was not offered"
    end
end

--- Connect the socket, with TLS if that is asked for: true, or nil and err.
local function connect_socket(self, opts, deadline)
    local socket = self.socket
    set_timeouts(self, deadline - now(), 0)
    -- A pool of its own: other Lua code may have left connections to this server in the default one.
    local ok, err = socket:connect(opts.host, opts.port, { pool = "throttle.websocket" })
    if not ok then
        return nil, "cannot connect: " .. err
    elseif opts.tls then
        set_timeouts(self, deadline - now(), 0)
        ok, err = socket:sslhandshake(false, opts.tls.server_name or opts.host, opts.tls.verify ~= false)
        -- Where no wait was needed, lua-nginx-module returns true for a bad certificate, too, and has
        -- closed the socket (its pull request 2506).
        if ok and not socket:getreusedtimes() then
            ok, err = nil, "the certificate was not accepted"
        end
        if not ok then
            return nil, "TLS handshake failed: " .. err
        end
    end
    return true
end

--- Do the handshake of the websocket: true, or nil and err.
local function shake_hands(self, opts, request, key, deadline)
    set_timeouts(self, deadline - now(), 0)
    local sent, err = self.socket:send(request)
    if not sent then
        return nil, err
    end
    local status, headers = receive_response(self, deadline)
    if not status then
        return nil, headers
    end
    local refusal = find_refusal(status, headers, key, opts.subprotocol)
    if refusal then
        return nil, refusal
    end
    self.subprotocol = headers["sec-websocket-protocol"]
    set_timeouts(self, SEND_SECONDS, SLICE_SECONDS)
    return true
end

--- Open a connection: the connection, or nil and err. Options:
--   host, port
--   path             "/"
--   tls              none; or {verify = true, server_name = host}
--   subprotocol      to offer; `connection.subprotocol` is what the server chose, or nil
--   headers          to send besides, values by name
--   timeout          seconds for everything up to the end of the handshake: 10
--   max_frame_bytes  of a whole message: 16 MiB
function websocket.connect(opts)
    local request, key = build_request(opts)
    if not request then
        return nil, key
    end
    local self = setmetatable({
        socket = ngx.socket.tcp(),
        max_frame_bytes = opts.max_frame_bytes or MAX_FRAME_BYTES,
        send_lock = assert(semaphore.new(1)),
        send_error = nil, -- why nothing can be sent any more
        pong = nil, -- what the light thread that sends now sends next: the payload of a pong
        chunks = {}, -- what was read and not used: `buffered` bytes, after `taken` bytes of the first
        taken = 0,
        buffered = 0,
        frame = nil, -- the frame whose header was read
        message = nil, -- the message of which fragments are missing
        ended = nil, -- what `receive` returns after the end
    }, Connection)
    local deadline = now() + (opts.timeout or CONNECT_SECONDS)
    local ok, err = connect_socket(self, opts, deadline)
    if ok then
        ok, err = shake_hands(self, opts, request, key, deadline)
        err = err and "websocket handshake failed: " .. err
    end
    if not ok then
        self.socket:close()
        return nil, err
    end
    return self
end

return websocket
