-- One sync of one writer, as in memory.py. The file of the layout goes before this one.
-- KEYS: the sorted set of writers by the time they lapse, then one hash for each counter.
-- ARGV: writer, number, live_for, may_fold, fold_after, remember_writers, time (empty: Redis's own),
--       then for each counter UPDATE.
-- The fields of a hash are packed doubles, little-endian. Each writer's is named w:WRITER.
local UPDATE = '<ddddddddd'  -- begin, period, expire_at, sum, count, rate, want, unit, ceiling
local TOTAL = '<dddddddd'  -- origin, begin, sum, count, rate, rates_at, held, swept; then SEEN of Go
local ENDED = '<dddd'  -- begin, sum, count, folded_until; absent at first
local WRITER = '<ddddddd'  -- begin, number, sum, count, rate, time, hold
local REPLY = '<dddddd'  -- sum, count, rate, lead, held, granted

local writers, writer, number = KEYS[1], 'w:' .. ARGV[1], tonumber(ARGV[2])
local live_for, may_fold = tonumber(ARGV[3]), ARGV[4] == '1'
local fold_after, remember_writers = tonumber(ARGV[5]), tonumber(ARGV[6])
local now = tonumber(ARGV[7])
if not now then
  local time = redis.call('TIME')
  now = tonumber(time[1]) + tonumber(time[2]) / 1000000
end

local is_overtaken = false  -- a counter has heard of a newer request of this writer

-- The counter at hand. The stored totals mean what the layout says.
local key, origin, begin, sum, count, rate, rates_at, held, swept
local stored_sum, stored_count
local ended_begin, ended_sum, ended_count, folded_until

local function load_counter(total, ended, first_begin, period)
  local seen = ''
  if total then
    local rest
    origin, begin, stored_sum, stored_count, rate, rates_at, held, swept, rest =
      struct.unpack(TOTAL, total)
    seen = string.sub(total, rest)
  else
    origin, begin, stored_sum, stored_count, rate, rates_at, held, swept =
      now, first_begin, 0, 0, 0, 0, 0, now
  end
  sum, count, stored_sum, stored_count =
    load_totals(key, stored_sum, stored_count, seen, not total, period > 0)
  if ended then
    ended_begin, ended_sum, ended_count, folded_until = struct.unpack(ENDED, ended)
  else
    ended_begin, ended_sum, ended_count, folded_until = begin, 0, 0, origin
  end
end

local function pack_counter()
  return struct.pack(TOTAL, origin, begin, stored_sum, stored_count, rate, rates_at, held, swept)
    .. pack_seen()
end

local function save_ended()
  redis.call('HSET', key, 'ended',
    struct.pack(ENDED, ended_begin, ended_sum, ended_count, folded_until))
end

-- Returns a function: the fields of writers that lapsed between `from` and `to`. Most counters of a
-- request have the same `from`.
local function lapsed_before(to)
  local known = {}
  return function(from)
    if not known[from] then
      local names = redis.call('ZRANGEBYSCORE', writers, string.format('%.17g', from),
        string.format('(%.17g', to))
      for i, name in ipairs(names) do
        names[i] = 'w:' .. name
      end
      known[from] = names
    end
    return known[from]
  end
end
local lapsed_since = lapsed_before(now)
local gone_since = lapsed_before(now - fold_after)

-- End the rates and holds of the writers that have lapsed since this was done last.
local function drop_lapsed()
  local lapsed
  if swept < now - remember_writers then
    lapsed = redis.call('HKEYS', key)  -- not synced for longer than writers are known
  else
    lapsed = lapsed_since(swept)
  end
  for _, name in ipairs(lapsed) do
    local record = string.sub(name, 1, 2) == 'w:' and redis.call('HGET', key, name)
    if record then
      local w_begin, w_number, w_sum, w_count, w_rate, w_time, w_hold =
        struct.unpack(WRITER, record)
      local is_current = w_begin == begin
      rate = rate - w_rate
      rates_at = rates_at - w_rate * (is_current and w_time or begin - origin)
      held = held - (is_current and w_hold or 0)
      redis.call('HSET', key, name,
        struct.pack(WRITER, w_begin, w_number, w_sum, w_count, 0, w_time, 0))
    end
  end
  swept = now
  return #lapsed > 0
end

-- Delete the records of writers that are gone. Their totals stay in the sum.
local function fold()
  local names = gone_since(folded_until)
  for _, name in ipairs(names) do
    if name ~= writer then
      redis.call('HDEL', key, name)
    end
  end
  if #names > 0 then
    folded_until = now - fold_after
    save_ended()
  end
end

-- Begin a period. Rates go on, and count from its begin; holds end.
local function turn(new_begin)
  ended_begin, ended_sum, ended_count = begin, sum, count
  begin, sum, count, held = new_begin, 0, 0, 0
  rates_at = rate * (new_begin - origin)
  save_ended()
end

-- The hold that a writer gets: what it wants, what there is room for, or what it had.
local function grant(hold, spent, want, unit, ceiling)
  local room = ceiling - sum - (held - hold)
  if room < want then
    room = math.floor(room / unit + 1e-9) * unit
  end
  return math.min(want, math.max(room, hold - spent, 0))
end

local function update(packed)
  local t_begin, period, expire_at, t_sum, t_count, t_rate, want, unit, ceiling =
    struct.unpack(UPDATE, packed)
  local fields = redis.call('HMGET', key, 'total', 'ended', writer)
  local is_new = not fields[1]
  load_counter(fields[1], fields[2], t_begin, period)
  local is_changed = drop_lapsed()
  local record = is_changed and redis.call('HGET', key, writer) or fields[3]
  if may_fold then
    fold()
  end
  local is_turned = t_begin > begin
  if is_turned then
    turn(t_begin)
  end
  local is_late = t_begin < begin
  local at = now - origin
  local w_begin, w_number, w_sum, w_count, w_rate, w_time, w_hold = t_begin, -1, 0, 0, 0, 0, 0
  if record then
    w_begin, w_number, w_sum, w_count, w_rate, w_time, w_hold = struct.unpack(WRITER, record)
    is_overtaken = is_overtaken or w_number > number
  end
  if t_begin > w_begin or (t_begin == w_begin and number > w_number) then
    if t_begin > w_begin then  -- a period has begun since its last sync
      w_sum, w_count, w_time, w_hold = 0, 0, t_begin - origin, 0
    end
    local new_sum, new_count = t_sum - w_sum, t_count - w_count
    if is_late then
      if t_begin == ended_begin then
        ended_sum, ended_count = ended_sum + new_sum, ended_count + new_count
        save_ended()
      end
    else
      sum, count = sum + new_sum, count + new_count
      rate, rates_at = rate + t_rate - w_rate, rates_at + t_rate * at - w_rate * w_time
      local hold = grant(w_hold, new_sum, want, unit, ceiling)
      held = held + hold - w_hold
      w_rate, w_time, w_hold = t_rate, at, hold
    end
    stored_sum, stored_count = save_totals(stored_sum, stored_count, sum, count, new_sum, new_count,
      is_turned or (is_new and period > 0), is_late, period == 0 and expire_at or 0)
    redis.call('HSET', key, 'total', pack_counter(), writer,
      struct.pack(WRITER, t_begin, number, t_sum, t_count, w_rate, w_time, w_hold))
    if expire_at > 0 and (is_new or is_turned) then
      redis.call('EXPIREAT', key, expire_at)
    end
  elseif is_changed then
    redis.call('HSET', key, 'total', pack_counter())
  end
  if is_late then
    return struct.pack(REPLY, ended_sum, ended_count, 0, 0, 0, 0)
  end
  return struct.pack(REPLY, sum, count, rate, math.max(rate * at - rates_at, 0), held, w_hold)
end

-- A key that cannot be used is skipped: the reply has its place and the error.
local replies, errors = {}, {}
for i = 2, #KEYS do
  key = KEYS[i]
  local is_done, reply = pcall(update, ARGV[6 + i])
  if not is_done then
    errors[#errors + 1] = {i - 2, type(reply) == 'table' and reply.err or reply}
    reply = struct.pack(REPLY, 0, 0, 0, 0, 0, 0)
  end
  replies[i - 1] = reply
end
-- What hinders all keys, such as a full memory, fails here.
if not is_overtaken then
  redis.call('ZADD', writers, string.format('%.17g', now + live_for), ARGV[1])
end
redis.call('ZREMRANGEBYSCORE', writers, '-inf', string.format('(%.17g', now - remember_writers))
redis.call('EXPIRE', writers, math.ceil(2 * remember_writers))
return {
  struct.pack('<d', now),
  redis.call('ZCOUNT', writers, string.format('%.17g', now), '+inf'),
  table.concat(replies),
  errors,
}
