-- Gives tasks whose lease has run out to the worker that calls, and forgets dead consumers.
--
-- KEYS: the streams of tasks, `reaper`, `workers`.
-- ARGV: number of streams; group; worker; lease in ms; most tasks to take; for how many ms no other
--   worker needs to look again; the start of the names of control streams; the consumer of
--   returned tasks.
-- Returns for each task: stream, id, how often it was delivered (this time included), payload.
--
-- A consumer is forgotten when its worker is not alive and the last of its tasks was taken.
local streams = tonumber(ARGV[1])
local group, worker, lease, room = ARGV[2], ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5])
local taken = {}

if not redis.call('SET', KEYS[streams + 1], worker, 'NX', 'PX', ARGV[6]) then
  return taken
end

-- A client refuses a reply that is too large: the rest is for the next turn.
local MOST_BYTES = 4 * 1024 * 1024
local bytes = 0

local function take_idle(stream)
  local key = KEYS[stream]
  local idle = redis.call('XPENDING', key, group, 'IDLE', lease, '-', '+', room - #taken)
  for _, entry in ipairs(idle) do
    if bytes >= MOST_BYTES then
      return
    end
    local id = entry[1]
    local claimed = redis.call('XCLAIM', key, group, worker, lease, id)[1]
    if claimed and claimed[2] then
      taken[#taken + 1] = {stream, id, entry[4] + 1, claimed[2][2]}
      bytes = bytes + #claimed[2][2]
    else -- deleted by hand: nothing is left to run
      redis.call('XACK', key, group, id)
    end
  end
end

local function forget_dead(stream)
  for _, consumer in ipairs(redis.call('XINFO', 'CONSUMERS', KEYS[stream], group)) do
    local name, pending, idle = consumer[2], consumer[4], consumer[6]
    if pending == 0 and idle > lease and name ~= ARGV[8]
        and not redis.call('ZSCORE', KEYS[streams + 2], name) then
      redis.call('XGROUP', 'DELCONSUMER', KEYS[stream], group, name)
      redis.call('DEL', ARGV[7] .. name)
    end
  end
end

for stream = 1, streams do
  local groups = redis.pcall('XINFO', 'GROUPS', KEYS[stream])
  if not groups.err and groups[1] then
    if #taken < room then
      take_idle(stream)
    end
    forget_dead(stream)
  end
end
return taken
