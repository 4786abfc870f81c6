-- Prints as JSON what is in the memory of a node, after a grant if there is one.
--
-- The arguments: the memory, the node, seconds of a slot; then a grant of requests, and names of users.

local script, path, node_id, slot_seconds = arg[0], arg[1], arg[2], tonumber(arg[3])
local folder = script:match("^(.*)/[^/]*$")
package.path = folder .. "/../../lua/?.lua;" .. folder .. "/?.lua;" .. package.path

local memory_audit = require "memory_audit"
local memory_host = require "memory_host"
local write_json = require "write_json"

local MAX_USERS, MAX_RECORDS = 1000, 2000

local host = memory_host.new(assert(memory_host.open_memory(path, MAX_RECORDS, node_id, slot_seconds)), MAX_USERS)
if arg[4] then
    local users = {}
    for i = 5, #arg do
        users[arg[i]] = { requests = { tonumber(arg[4]), 0 } } -- safe 0: nothing but the grant
    end
    host:grant(users)
end
local found = memory_audit.look(host.memory, host.header)
found.users = write_json.object(found.users)
found.shared = write_json.object(found.shared)
print(write_json.text(found))
