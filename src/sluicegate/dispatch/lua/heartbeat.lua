-- Says that a worker is alive, and how quick it is.
--
-- KEYS: `workers`, `rates`, `rate`, `leases`.
-- ARGV: worker; its lease in ms, for which it counts as alive; its rate in requests per second (empty: not
--   known); the lifetime of the keys in ms, for a queue that is not used any more.
-- Returns the time of Redis in seconds and microseconds, and the number of live workers.
local workers, rates, rate, leases = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local worker, lease, lifetime = ARGV[1], ARGV[2], ARGV[4]

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
-- First, for it needs no memory: when memory is short Redis refuses only the first write of a script,
-- and a worker that cannot say that it lives would lose its callers.
redis.call('PEXPIRE', rates, lifetime)
redis.call('ZADD', workers, string.format('%.0f', now + tonumber(lease)), worker)
redis.call('PEXPIRE', workers, lifetime)
redis.call('HSET', leases, worker, lease) -- kept until the last of its tasks was taken: see reap.lua
redis.call('PEXPIRE', leases, lifetime)
if ARGV[3] ~= '' then
  redis.call('HSET', rates, worker, ARGV[3])
  redis.call('PEXPIRE', rates, lifetime)
end

for _, dead in ipairs(redis.call('ZRANGEBYSCORE', workers, '-inf', string.format('%.0f', now))) do
  redis.call('ZREM', workers, dead)
  redis.call('HDEL', rates, dead)
end

local total = 0
for _, one in ipairs(redis.call('HVALS', rates)) do
  total = total + (tonumber(one) or 0) -- other programs write here, too
end
if total > 0 then
  redis.call('SET', rate, string.format('%.6g', total), 'PX', lifetime)
else
  redis.call('DEL', rate)
end
return {tonumber(time[1]), tonumber(time[2]), redis.call('ZCARD', workers)}
