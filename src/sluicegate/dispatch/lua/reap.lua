-- Gives tasks whose lease has run out to the worker that calls, and forgets dead consumers.
--
-- KEYS: the streams of tasks, `reaper`, `workers`, `leases`.
-- ARGV: number of streams; group; worker; lease in ms; most tasks to take; for how many ms no other
--   worker needs to look again; the start of the names of control streams; the consumer of
--   returned tasks; the start of the names of `taken` keys; most bytes of a request; the field that
--   stands for a larger one (see recover.lua).
-- Returns for each task: stream, id, how often it was delivered (this time included), its fields.
--
-- The lease of a task is that of the worker which holds it. A consumer that has told none, such as
-- a worker in another language, has the lease of the worker that calls.
--
-- Keys that are not in KEYS are tried with `pcall`: while the slot of a queue is moved to another
-- server of a cluster they may be there already, and an error would lose the tasks that were taken.
--
-- A consumer is forgotten when its worker is not alive and the last of its tasks was taken.
local streams = tonumber(ARGV[1])
local group, worker, lease, room = ARGV[2], ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5])
local workers, leases = KEYS[streams + 2], KEYS[streams + 3]
local PAGE, MOST_PAGES = 100, 100
local taken = {}

if not redis.call('SET', KEYS[streams + 1], worker, 'NX', 'PX', ARGV[6]) then
  return taken
end

local lease_of, shortest = {}, lease
local told = redis.call('HGETALL', leases)
for place = 1, #told, 2 do
  local one = tonumber(told[place + 1])
  if one and one >= 1 and one < 1e15 then -- other programs write here, too
    lease_of[told[place]] = math.floor(one)
    shortest = math.min(shortest, math.floor(one))
  else
    redis.call('HDEL', leases, told[place])
  end
end

-- A client refuses a reply that is too large: the rest is for the next turn.
local MOST_BYTES = 4 * 1024 * 1024
local bytes = 0

local function has_room()
  return #taken < room and bytes < MOST_BYTES
end

local function take(stream, id, least_idle, deliveries)
  local key = KEYS[stream]
  local claimed = redis.call('XCLAIM', key, group, worker, least_idle, id)[1]
  if claimed and claimed[2] then
    redis.pcall('DEL', ARGV[9] .. stream .. ':' .. id)
    local fields, size = claimed[2], 0
    for _, word in ipairs(fields) do
      size = size + #word
    end
    if size > tonumber(ARGV[10]) then
      fields, size = {ARGV[11], tostring(size)}, 0
    end
    taken[#taken + 1] = {stream, id, deliveries + 1, fields}
    bytes = bytes + size
  else -- deleted by hand: nothing is left to run
    redis.call('XACK', key, group, id)
  end
end

local function take_idle(stream)
  local start = '-'
  for _ = 1, MOST_PAGES do
    local page = redis.call('XPENDING', KEYS[stream], group, 'IDLE', shortest, start, '+', PAGE)
    for _, entry in ipairs(page) do
      local id, consumer, idle, deliveries = entry[1], entry[2], entry[3], entry[4]
      if not has_room() then
        return
      elseif idle >= (lease_of[consumer] or lease) then
        take(stream, id, lease_of[consumer] or lease, deliveries)
      end
      start = '(' .. id
    end
    if #page < PAGE then
      return
    end
  end
end

local is_consumer = {} -- by name

local function forget_dead(stream)
  for _, consumer in ipairs(redis.call('XINFO', 'CONSUMERS', KEYS[stream], group)) do
    local name, pending, idle = consumer[2], consumer[4], consumer[6]
    if pending == 0 and idle > lease and name ~= ARGV[8]
        and not redis.call('ZSCORE', workers, name) then
      redis.call('XGROUP', 'DELCONSUMER', KEYS[stream], group, name)
      redis.pcall('DEL', ARGV[7] .. name)
    else
      is_consumer[name] = true
    end
  end
end

for stream = 1, streams do
  local groups = redis.pcall('XINFO', 'GROUPS', KEYS[stream])
  if not groups.err and groups[1] then
    take_idle(stream)
    forget_dead(stream)
  end
end
for name in pairs(lease_of) do
  if not is_consumer[name] and not redis.call('ZSCORE', workers, name) then
    redis.call('HDEL', leases, name)
  end
end
return taken
