-- What nearly every call is, one bucket and a yes or no, before a single function is made:
-- half the time. bucket.lua gives the same answer.

if verb == 'allow' and #KEYS == 1 then
  local limit, rate, slack = ARGV[3] + 0, ARGV[4] + 0, ARGV[6] + 0
  local used, at = 0, now
  local value = redis.call('GET', KEYS[1])
  if value and #value == 16 then
    used, at = struct.unpack('<dd', value)
    if at < now then
      used, at = math.max(used - (now - at) * rate, 0), now
    end
  end
  if used + (cost - limit) > slack then
    return 0
  end
  used = used + cost
  local ttl = math.min(math.ceil((used / rate + at - now) / 1000) + 1, MAX_TTL)
  redis.call('PSETEX', KEYS[1], ttl, struct.pack('<dd', used, at))
  return 1
end
