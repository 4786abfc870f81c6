--- The leader's slot, estimated from the node's own monotonic clock.
--
-- A slot is `slot_seconds` long; slot n begins at n * slot_seconds of the leader's time. The node
-- knows that time as its own monotonic time plus an offset: docs/node.md, "The clock".
--
-- - A report and its Ack make a sample: the offset lies between time - received and time - sent; the
--   middle is off by half the round trip at most. Of the last eight samples the one with the shortest
--   round trip counts. If even that one took more than half a slot, the offset stays as it is, or
--   moves to the nearer of the two bounds.
-- - A sample whose bounds exclude those of older ones says that one of the two clocks has stepped:
--   the older samples are dropped.
-- - A Quota has the leader's time as well, but its time on the way is not known. It counts only
--   while there is no sample of this leader.
-- - A new leader (a higher epoch) starts without samples. The old offset serves until its first word.

local floor, max, min = math.floor, math.max, math.min

local MAX_SAMPLES = 8
-- If the round trip took more than this part of a slot, the middle of a sample is not used.
local MAX_ROUND_TRIP = 0.5
-- Two clocks drift apart by some microseconds in eight slots; a step is more than that.
local MAX_DRIFT = 0.001

local slot_clock = {}
slot_clock.__index = slot_clock

function slot_clock.new(slot_seconds, now, wall)
    return setmetatable({
        slot_seconds = slot_seconds,
        offset = wall - now, -- the leader's time less the node's monotonic time
        round_trip = 0, -- the shortest of the last ones; 0 while none is known
        samples = {},
        hinted = nil,
        epoch = -1,
    }, slot_clock)
end

--- The slot at the node's time `now`.
function slot_clock:slot(now)
    return floor((now + self.offset) / self.slot_seconds)
end

--- The node's time at which a slot begins.
function slot_clock:begin(slot)
    return slot * self.slot_seconds - self.offset
end

local function follows(self, epoch)
    if epoch > self.epoch then
        self.epoch = epoch
        self.samples = {}
        self.round_trip = 0
        self.hinted = nil
    end
    return epoch == self.epoch
end

--- The leader of `epoch` was at `time`, at some point between `sent` and `received`.
function slot_clock:sample(epoch, sent, time, received)
    local is_first = self.epoch < 0
    if not follows(self, epoch) then
        return
    end
    local least, most = time - received, time - sent
    for _, older in ipairs(self.samples) do
        if least > older.most + MAX_DRIFT or most < older.least - MAX_DRIFT then
            self.samples = {}
            break
        end
    end
    local samples = self.samples
    samples[#samples + 1] = { least = least, most = most }
    if #samples > MAX_SAMPLES then
        table.remove(samples, 1)
    end
    local best = samples[1]
    for _, each in ipairs(samples) do
        if each.most - each.least < best.most - best.least then
            best = each
        end
    end
    self.round_trip = best.most - best.least
    if is_first or self.round_trip <= MAX_ROUND_TRIP * self.slot_seconds then
        self.offset = (best.least + best.most) / 2
    else
        -- A wide sample: the clock moves only as far as it must to agree with it.
        self.offset = min(max(self.offset, best.least), best.most)
    end
end

--- The leader of `epoch` was at `time`, at some point before `received`.
function slot_clock:hint(epoch, time, received)
    if not follows(self, epoch) or #self.samples > 0 then
        return
    end
    -- What was longest on its way is the furthest behind.
    if not self.hinted or time - received > self.hinted then
        self.hinted = time - received
        self.offset = self.hinted
    end
end

return slot_clock
