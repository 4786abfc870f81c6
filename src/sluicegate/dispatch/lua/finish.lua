-- Ends tasks: acknowledges, deletes and answers each that nobody has ended before.
--
-- KEYS: the streams of tasks, `dead`, then reply streams.
-- ARGV: number of streams; group; lifetime of a reply stream in ms; most entries of it; most
--   entries of the dead list; then for each task: stream, id, place of its reply stream in KEYS
--   (0: none), response, and why it is put on the dead list (empty: it is not).
-- Returns for each task whether this call has ended it.
--
-- Each client is sent one entry, with one field `response` for each of its tasks.
--
-- Once a task is acknowledged nothing may stop the script: an error would leave it in its stream for
-- ever, and take the answers of the others. What depends on keys that other programs write, the
-- dead list and reply streams, is therefore tried with `pcall`, and lost if they are no streams.
local MOST_WORDS = 200 -- names and values of an entry that the dead list keeps: a request has one
local MOST_BYTES = 16 * 1024 * 1024 -- of them
local streams = tonumber(ARGV[1])
local group = ARGV[2]
local ended, deleted, replies, order = {}, {}, {}, {}

local function bury(stream, id, reason)
  local entry = redis.call('XRANGE', stream, id, id)[1]
  if not entry then
    return
  end
  local words = {'reason', reason, 'stream', stream, 'id', id}
  local bytes = 0
  for place = 1, math.min(#entry[2], MOST_WORDS) - 1, 2 do
    local name, value = entry[2][place], entry[2][place + 1]
    bytes = bytes + #name + #value
    if bytes <= MOST_BYTES then
      words[#words + 1] = name
      words[#words + 1] = value
    end
  end
  redis.pcall('XADD', KEYS[streams + 1], 'MAXLEN', '~', ARGV[5], '*', unpack(words))
end

for place = 6, #ARGV, 5 do
  local stream, id = KEYS[tonumber(ARGV[place])], ARGV[place + 1]
  local is_ours = redis.call('XACK', stream, group, id)
  if is_ours == 1 then
    if ARGV[place + 4] ~= '' then
      bury(stream, id, ARGV[place + 4])
    end
    deleted[stream] = deleted[stream] or {}
    table.insert(deleted[stream], id)
    local reply_to = tonumber(ARGV[place + 2])
    if reply_to > 0 then
      local fields = replies[reply_to]
      if not fields then
        fields = {}
        replies[reply_to] = fields
        order[#order + 1] = reply_to
      end
      fields[#fields + 1] = 'response'
      fields[#fields + 1] = ARGV[place + 3]
    end
  end
  ended[#ended + 1] = is_ours
end

for stream, ids in pairs(deleted) do
  redis.call('XDEL', stream, unpack(ids))
end
for _, reply_to in ipairs(order) do
  local key = KEYS[reply_to]
  redis.pcall('XADD', key, 'MAXLEN', '~', ARGV[4], '*', unpack(replies[reply_to]))
  redis.pcall('PEXPIRE', key, ARGV[3])
end
return ended
