-- Gives a worker once more what was delivered to it and never reached it.
--
-- KEYS: the streams of tasks.
-- ARGV: number of streams; group; worker; then for each task that the worker holds: stream, id.
-- Returns for each other task of the worker: stream, id, how often it was delivered, its fields.
-- To deliver it once more does not count.
local streams, group, worker = tonumber(ARGV[1]), ARGV[2], ARGV[3]
local PAGE, MOST_BYTES = 100, 4 * 1024 * 1024
local held, found, bytes = {}, {}, 0
for place = 4, #ARGV, 2 do
  held[ARGV[place] .. ' ' .. ARGV[place + 1]] = true
end

-- Gives a task to the worker again; a task that was deleted by hand is ended.
local function give(stream, id, deliveries)
  local key = KEYS[stream]
  local entry = redis.call('XCLAIM', key, group, worker, 0, id, 'RETRYCOUNT', deliveries)[1]
  if entry and entry[2] then
    found[#found + 1] = {stream, id, deliveries, entry[2]}
    for _, word in ipairs(entry[2]) do
      bytes = bytes + #word
    end
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
      if bytes >= MOST_BYTES then -- a client refuses a reply that is too large
        return found
      elseif not held[stream .. ' ' .. id] then
        give(stream, id, deliveries)
      end
      start = '(' .. id
    end
  end
end
return found
