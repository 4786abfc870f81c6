-- Spends the credit of some users, as fast as it can, until there is none; it may be killed at any time.
--
-- The arguments: the memory, a file of counts, how many users there are ("user-1", ...), and how many
-- names of further users it makes up. For each user the file has three doubles: how many requests
-- passed, how many calls of consume have begun, and how many have ended. Further users make records
-- come into being; they are not counted.

local script, path, counts_path = arg[0], arg[1], arg[2]
local users, names = tonumber(arg[3]), tonumber(arg[4])
local folder = script:match("^(.*)/[^/]*$")
package.path = folder .. "/../../lua/?.lua;" .. folder .. "/?.lua;" .. package.path

local ffi = require "ffi"
local memory_host = require "memory_host"

local C = ffi.C
local O_RDWR, PROT_READ_WRITE, MAP_SHARED = 2, 3, 1
local COUNTS_BYTES = 4096
local ONE = { requests = 1 }

local descriptor = C.open(counts_path, O_RDWR)
assert(descriptor >= 0, "cannot open " .. counts_path)
local address = C.mmap(nil, COUNTS_BYTES, PROT_READ_WRITE, MAP_SHARED, descriptor, 0)
assert(ffi.cast("intptr_t", address) ~= -1, "cannot map " .. counts_path)
-- Volatile, or a compiler might put off a store.
local counts = ffi.cast("volatile double *", address)

local host = memory_host.open(path, 1000)
math.randomseed(C.geteuid() + host.memory.clock() * 1e6)
local has_credit
repeat
    has_credit = false
    for number = 1, users do
        local name, place = "user-" .. number, 3 * (number - 1)
        if host:throttle(name, ONE) == true then
            has_credit = true
            counts[place] = counts[place] + 1
            counts[place + 1] = counts[place + 1] + 1
            assert(host:consume(name, ONE))
            counts[place + 2] = counts[place + 2] + 1
        end
    end
    host:consume("further-" .. math.random(names), ONE)
until not has_credit
