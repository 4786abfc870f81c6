-- Gives a worker once more what was delivered to it and never reached it.
--
-- KEYS: the streams of tasks.
-- ARGV: number of streams; group; worker; most bytes of a request; the field that stands for a
--   larger one; then for each task that the worker holds: stream, id.
-- Returns for each other task of the worker: stream, id, how often it was delivered, its fields.
-- To deliver it once more does not count.
--
-- A client refuses a reply that is too large. Of a request that is too large only its size is
-- given, so that the worker can put it on the dead list: delivered again and again, it would keep
-- the worker from all others.
local streams, group, worker, largest = tonumber(ARGV[1]), ARGV[2], ARGV[3], tonumber(ARGV[4])
local PAGE, MOST_BYTES = 100, 4 * 1024 * 1024
local held, found, bytes = {}, {}, 0
for place = 6, #ARGV, 2 do
  held[ARGV[place] .. ' ' .. ARGV[place + 1]] = true
end

-- Gives a task to the worker again; a task that was deleted by hand is ended.
local function give(stream, id, deliveries)
  local key = KEYS[stream]
  local entry = redis.call('XCLAIM', key, group, worker, 0, id, 'RETRYCOUNT', deliveries)[1]
  if entry and entry[2] then
    local fields, size = entry[2], 0
    for _, word in ipairs(fields) do
      size = size + #word
    end
    if size > largest then
      fields, size = {ARGV[5], tostring(size)}, 0
    end
    found[#found + 1] = {stream, id, deliveries, fields}
    bytes = bytes + size
  else
    redis.call('XACK', key, group, id)
  end
end

for stream = 1, streams do
  local start, size = '-', PAGE
  while size == PAGE do
    local page = redis.pcall('XPENDING', KEYS[stream], group, start, '+', PAGE, worker)
    size = page.err and 0 or #page
    for place = 1, size do
      local id, deliveries = page[place][1], page[place][4]
      if bytes >= MOST_BYTES then
        return found
      elseif not held[stream .. ' ' .. id] then
        give(stream, id, deliveries)
      end
      start = '(' .. id
    end
  end
end
return found
