-- Names the entry of a stream that follows another, without its fields, which may be too large.
--
-- KEYS: the stream. ARGV: an id.
-- Returns the id of the next entry, or nil.
local entry = redis.call('XRANGE', KEYS[1], '(' .. ARGV[1], '+', 'COUNT', 1)[1]
return entry and entry[1]
