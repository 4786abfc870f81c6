-- One decision about one key, on the server's own time. The algorithms are those of
-- `_algorithms.pxd`; only the way of writing a state down differs. The script of an algorithm is
-- this file, interface.lua, the algorithm's own and decide.lua; no more, for every function that
-- is made costs a part of a microsecond at each call.
--
-- KEYS  one per limit.
-- ARGV  verb, time or "", then for each limit: limit, rate, span, slack, clock_epsilon, then cost
--       (for `lease`: what is needed, what is wanted).
--
-- Times are in microseconds of Unix time, the rate in units per microsecond: whole numbers
-- below 2^53, so that doubles have them exactly. A time is given in tests alone.
--
-- Each key lives until it has nothing in use: an absent key and an idle one are the same.
-- A clock that goes back (a failover) mints nothing: a state stands still until the time has
-- caught up, or the key has expired.

local verb = ARGV[1]
local now = tonumber(ARGV[2])
if not now then
  local time = redis.call('TIME')
  now = time[1] * 1000000 + time[2]
end

local cost = tonumber(ARGV[5 * #KEYS + 3])
local MAX_TTL = 1e15 -- milliseconds that a key may be told to live
