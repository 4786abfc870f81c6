-- Renews the leases of a worker's tasks.
--
-- KEYS: the streams of tasks.
-- ARGV: number of streams; group; worker; then for each task: stream, id.
-- Returns for each task whether it still is the worker's.
local group, worker = ARGV[2], ARGV[3]
local kept = {}

for place = 4, #ARGV, 2 do
  local stream, id = KEYS[tonumber(ARGV[place])], ARGV[place + 1]
  local pending = redis.pcall('XPENDING', stream, group, id, id, 1, worker)
  local is_ours = 0
  if not pending.err and pending[1] then
    redis.call('XCLAIM', stream, group, worker, 0, id, 'JUSTID')
    is_ours = 1
  end
  kept[#kept + 1] = is_ours
end
return kept
