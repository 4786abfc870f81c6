-- Gives tasks that wait to the worker that calls, the most urgent first.
--
-- KEYS: the streams of tasks, the most urgent first.
-- ARGV: group; worker; then for each stream how many tasks may be taken of it and those before it.
-- Returns for each task: stream, id, its fields.
--
-- XREADGROUP of all streams at once would take up to COUNT of each. A few at a time, until there are
-- many bytes: a client refuses a reply that is too large, and must ask for its tasks again. Where
-- the tasks so far are small, more at a time.
local FEW, MANY, MOST_BYTES = 4, 64, 4 * 1024 * 1024
local taken, bytes = {}, 0

-- Takes up to `count` tasks of a stream; how many, or an error.
local function take(stream, count)
  local found = redis.pcall('XREADGROUP', 'GROUP', ARGV[1], ARGV[2], 'COUNT', count,
    'STREAMS', KEYS[stream], '>')
  if not found then
    return 0
  elseif found.err then
    return found
  end
  for _, entry in ipairs(found[1][2]) do
    taken[#taken + 1] = {stream, entry[1], entry[2]}
    for _, word in ipairs(entry[2]) do
      bytes = bytes + #word
    end
  end
  return #found[1][2]
end

for stream = 1, #KEYS do
  local room = tonumber(ARGV[2 + stream]) - #taken
  while room > 0 and bytes < MOST_BYTES do
    local asked = math.min(room, FEW)
    if #taken > 0 and bytes / #taken < MOST_BYTES / MANY / 16 then
      asked = math.min(room, MANY)
    end
    local count = take(stream, asked)
    if type(count) == 'table' then -- what was taken is delivered
      return #taken > 0 and taken or count
    elseif count < asked then
      break
    end
    room = room - count
  end
end
return taken
