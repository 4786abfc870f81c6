-- Gives tasks that wait to the worker that calls, the most urgent first.
--
-- KEYS: the streams of tasks, the most urgent first.
-- ARGV: group; worker; then for each stream how many tasks may be taken of it and those before it.
-- Returns for each task: stream, id, its fields.
--
-- XREADGROUP of all streams at once would take up to COUNT of each.
local taken = {}
for stream = 1, #KEYS do
  local room = tonumber(ARGV[2 + stream]) - #taken
  if room > 0 then
    local found = redis.pcall('XREADGROUP', 'GROUP', ARGV[1], ARGV[2], 'COUNT', room,
      'STREAMS', KEYS[stream], '>')
    if found and found.err then
      if #taken == 0 then
        return found
      end
      break -- what was taken is delivered
    elseif found then
      for _, entry in ipairs(found[1][2]) do
        taken[#taken + 1] = {stream, entry[1], entry[2]}
      end
    end
  end
end
return taken
