-- Adds requests to a queue, each unless the queue is full or its idempotency key was used.
--
-- KEYS: the streams of tasks, `workers`, `rate`, `draining`, then idempotency keys.
-- ARGV: number of streams; most requests in the queue; most seconds of work in it (0: any);
--   lifetime of idempotency keys in ms; then for each request: stream, place of its idempotency
--   key in KEYS (0: none), payload.
-- Returns the length of the queue, its limit, and for each request its id or why it was refused.
local BUSY, DUPLICATE, NO_WORKERS = 0, 1, 2

local streams = tonumber(ARGV[1])
local limit = tonumber(ARGV[2])
local seconds = tonumber(ARGV[3])
local results = {0, 0}

local time = redis.call('TIME')
local now = string.format('(%.0f', time[1] * 1000 + math.floor(time[2] / 1000))
local has_workers = redis.call('ZCOUNT', KEYS[streams + 1], now, '+inf') > 0

local length = 0
for stream = 1, streams do
  length = length + redis.call('XLEN', KEYS[stream])
end
if seconds > 0 then
  local rate = tonumber(redis.call('GET', KEYS[streams + 2]) or '')
  if rate then
    limit = math.min(limit, math.max(1, math.floor(rate * seconds)))
  end
end
if redis.call('EXISTS', KEYS[streams + 3]) == 1 then
  limit = 0
end

for place = 5, #ARGV, 3 do
  local once = tonumber(ARGV[place + 1])
  local result
  if not has_workers then
    result = NO_WORKERS
  elseif length >= limit then
    result = BUSY
  elseif once > 0 and not redis.call('SET', KEYS[once], '1', 'NX', 'PX', ARGV[4]) then
    result = DUPLICATE
  else
    result = redis.call('XADD', KEYS[tonumber(ARGV[place])], '*', 'request', ARGV[place + 2])
    length = length + 1
  end
  results[#results + 1] = result
end
results[1] = length
results[2] = limit
return results
