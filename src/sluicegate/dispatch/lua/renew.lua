-- Renews the leases of a worker's tasks.
--
-- KEYS: the streams of tasks.
-- ARGV: number of streams; group; worker; the start of the names of `taken` keys; their lifetime in
--   ms; then for each task: stream, id.
-- Returns for each task whether it still is the worker's.
--
-- To renew a lease is to set the idle time of its entry to 0. How long the worker has had the task
-- is then kept beside it, in a `taken` key: `cancel` tells the caller.
local group, worker, taken, lifetime = ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local kept = {}

for place = 6, #ARGV, 2 do
  local stream, id = KEYS[tonumber(ARGV[place])], ARGV[place + 1]
  local pending = redis.pcall('XPENDING', stream, group, id, id, 1, worker)
  local is_ours = 0
  if not pending.err and pending[1] then
    redis.call('XCLAIM', stream, group, worker, 0, id, 'JUSTID')
    local key = taken .. ARGV[place] .. ':' .. id
    local since = string.format('%.0f', now - pending[1][3])
    redis.pcall('SET', key, since, 'NX')
    redis.pcall('PEXPIRE', key, lifetime)
    is_ours = 1
  end
  kept[#kept + 1] = is_ours
end
return kept
