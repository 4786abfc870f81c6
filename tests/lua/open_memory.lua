-- Opens the memory of a node, and prints how many users it has, or what is wrong.
--
-- The arguments: path, node, seconds of a slot.

local script, path, node_id, slot_seconds = arg[0], arg[1], arg[2], tonumber(arg[3])
local folder = script:match("^(.*)/[^/]*$")
package.path = folder .. "/../../lua/?.lua;" .. folder .. "/?.lua;" .. package.path

local memory_host = require "memory_host"

local opened, problem = memory_host.open_memory(path, 100, node_id, slot_seconds)
print(opened and opened.header.users or problem)
