-- Takes requests out of a queue that nobody waits for any more.
--
-- KEYS: the streams of tasks.
-- ARGV: number of streams; group; the start of the names of control streams; their lifetime in ms;
--   most entries of one; the consumer of returned tasks; the start of the names of `taken` keys;
--   then for each request: stream, id.
-- Returns for each request two numbers: where it was (0 ended before, 1 waiting, 2 with a worker),
-- and for how many ms the worker has had it. The worker is told, so that it does not begin it.
--
-- The request is taken out before the worker is told. Redis refuses a command that needs memory
-- only as the first write of a script, so the order lets requests be cancelled when memory is short.
-- A worker that could not be told learns it when it next renews its leases.
local group, control, lifetime, returned = ARGV[2], ARGV[3], ARGV[4], ARGV[6]
local results = {}
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

for place = 8, #ARGV, 2 do
  local stream, id = KEYS[tonumber(ARGV[place])], ARGV[place + 1]
  local pending = redis.pcall('XPENDING', stream, group, id, id, 1)
  local entry = not pending.err and pending[1]
  local where, had = 0, 0
  if entry then
    redis.call('XACK', stream, group, id)
    redis.call('XDEL', stream, id)
    where = 1
    if entry[2] ~= returned then
      local since = tonumber(redis.pcall('GET', ARGV[7] .. ARGV[place] .. ':' .. id))
      where, had = 2, since and now - since or entry[3]
      local key = control .. entry[2]
      redis.pcall('XADD', key, 'MAXLEN', '~', ARGV[5], '*', 'cancel', ARGV[place] .. ' ' .. id)
      redis.pcall('PEXPIRE', key, lifetime)
    end
  elseif redis.call('XDEL', stream, id) == 1 then
    where = 1
  end
  results[#results + 1] = where
  results[#results + 1] = had
end
return results
