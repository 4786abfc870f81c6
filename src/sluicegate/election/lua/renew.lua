-- Renews the lease if it still is the caller's.
-- KEYS: lease, epoch. ARGV: owner, lease in ms, the epoch of the caller's leadership.
-- Returns: state (1 held, 0 taken, 2 nobody's), epoch, ms left, owner.
local owner = redis.call('GET', KEYS[1])
local epoch = tonumber(redis.call('GET', KEYS[2]) or 0) or 0
if not (epoch >= 0 and epoch < 1e15) then
    epoch = 0 -- written by hand: above 2^53 there is no next number
end
if not owner then
    return {2, epoch, 0, ''}
end
if owner ~= ARGV[1] then
    return {0, epoch, redis.call('PTTL', KEYS[1]), owner}
end
if epoch < tonumber(ARGV[3]) then
    -- Deleted by hand, or evicted: the next leader must not have a lower one.
    epoch = tonumber(ARGV[3])
    redis.call('SET', KEYS[2], ARGV[3])
end
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return {1, epoch, tonumber(ARGV[2]), owner}
