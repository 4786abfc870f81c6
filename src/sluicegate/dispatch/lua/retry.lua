-- Puts requests of the dead list back into the queue, oldest first.
--
-- KEYS: the streams of tasks, `dead`.
-- ARGV: number of streams; most requests.
-- Returns how many. Their time-outs begin anew.
local streams = tonumber(ARGV[1])
local dead = KEYS[streams + 1]
local known = {}
for stream = 1, streams do
  known[KEYS[stream]] = true
end

local count = 0
for _, entry in ipairs(redis.call('XRANGE', dead, '-', '+', 'COUNT', ARGV[2])) do
  local stream, request
  for place = 1, #entry[2], 2 do
    local field, value = entry[2][place], entry[2][place + 1]
    if field == 'stream' then
      stream = value
    elseif field == 'request' then
      request = value
    end
  end
  if known[stream] and request then
    redis.call('XADD', stream, '*', 'request', request)
    count = count + 1
  end
  redis.call('XDEL', dead, entry[1])
end
return count
