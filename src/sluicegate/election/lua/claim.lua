-- Takes the lease if it is free or the caller's own, with a new epoch.
-- KEYS: lease, epoch. ARGV: owner, lease in ms, the highest epoch that the caller knows,
-- "1" to claim though the epoch here is lower than that one.
-- Returns: state (1 held, 0 taken, -1 regressed), epoch, ms left, owner.
local owner = redis.call('GET', KEYS[1])
local epoch = tonumber(redis.call('GET', KEYS[2]) or 0) or 0
if not (epoch >= 0 and epoch < 1e15) then
    epoch = 0 -- written by hand: above 2^53 there is no next number
end
if owner and owner ~= ARGV[1] then
    return {0, epoch, redis.call('PTTL', KEYS[1]), owner}
end
local known = tonumber(ARGV[3])
if epoch < known and ARGV[4] ~= '1' then
    return {-1, epoch, 0, ''}
end
epoch = math.max(epoch, known) + 1
redis.call('SET', KEYS[2], string.format('%.0f', epoch))
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return {1, epoch, tonumber(ARGV[2]), ARGV[1]}
