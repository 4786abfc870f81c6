-- Puts requests of the dead list back into the queue, oldest first.
--
-- KEYS: the streams of tasks, `dead`.
-- ARGV: number of streams; most requests.
-- Returns how many. Their time-outs begin anew.
--
-- An entry goes back with the fields that it had, so that one without a field `request` comes back
-- to the list. One of an unknown stream, or without a field, stays on the list.
local PAGE = 100
local streams, most = tonumber(ARGV[1]), tonumber(ARGV[2])
local dead = KEYS[streams + 1]
local known = {}
for stream = 1, streams do
  known[KEYS[stream]] = true
end

-- The stream of a dead entry, and the fields that it had there.
local function original(fields)
  local added, rest = {}, {}
  for place = 1, #fields, 2 do
    local field, value = fields[place], fields[place + 1]
    local is_added = field == 'reason' or field == 'stream' or field == 'id'
    if is_added and not added[field] then
      added[field] = value
    else
      rest[#rest + 1] = field
      rest[#rest + 1] = value
    end
  end
  return added.stream, rest
end

local count, start, size = 0, '-', PAGE
while count < most and size == PAGE do
  local page = redis.call('XRANGE', dead, start, '+', 'COUNT', PAGE)
  size = #page
  for _, entry in ipairs(page) do
    local stream, rest = original(entry[2])
    if count < most and known[stream] and #rest > 0 then
      redis.call('XADD', stream, '*', unpack(rest))
      redis.call('XDEL', dead, entry[1])
      count = count + 1
    end
    start = '(' .. entry[1]
  end
end
return count
