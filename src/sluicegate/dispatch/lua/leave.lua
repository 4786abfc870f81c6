-- Gives back all tasks of a worker that stops, and forgets the worker.
--
-- KEYS: the streams of tasks, `workers`, `rates`, `leases`.
-- ARGV: number of streams; group; worker; the consumer of returned tasks; the idle time in ms that
--   they are given, which is beyond any lease, so that the next reaper takes them; the worker's
--   control stream.
-- Returns how many tasks were given back. The delivery that did not run is not counted.
local streams = tonumber(ARGV[1])
local group, worker, returned, idle = ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local count = 0

for stream = 1, streams do
  local key = KEYS[stream]
  local pending = redis.pcall('XPENDING', key, group, '-', '+', 100000, worker)
  if not pending.err then
    for _, entry in ipairs(pending) do
      redis.call('XCLAIM', key, group, returned, 0, entry[1],
        'IDLE', idle, 'RETRYCOUNT', math.max(entry[4] - 1, 0), 'JUSTID')
      count = count + 1
    end
    redis.call('XGROUP', 'DELCONSUMER', key, group, worker)
  end
end
redis.call('ZREM', KEYS[streams + 1], worker)
redis.call('HDEL', KEYS[streams + 2], worker)
redis.call('HDEL', KEYS[streams + 3], worker)
redis.pcall('DEL', ARGV[6]) -- not in KEYS: in a cluster it may be on another server by now
return count
