-- A node says that it is there: KEYS[1] the set of the nodes, ARGV name and microseconds until
-- the name lapses. Returns how many there are.

local time = redis.call('TIME')
local now, ttl = time[1] * 1000000 + time[2], tonumber(ARGV[2])
redis.call('ZADD', KEYS[1], string.format('%.0f', now + ttl), ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', string.format('%.0f', now))
redis.call('PEXPIRE', KEYS[1], string.format('%.0f', ttl / 1000))
return redis.call('ZCARD', KEYS[1])
