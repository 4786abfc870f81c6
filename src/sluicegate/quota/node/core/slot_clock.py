"""`SlotClock`: the leader's slot, estimated from the node's own monotonic clock.

A slot is `slot_seconds` long; slot n begins at n * slot_seconds of the leader's time. The node
knows that time as its own monotonic time plus an offset:

- A report and its Ack make a sample: sent (node), time (leader), received (node). When the leader
  answered, the node's clock stood between sent and received, so the offset lies between
  time - received and time - sent; the middle is off by half the round trip at most. Of the last
  eight samples the one with the shortest round trip counts. If even that one took more than half
  a slot, the offset stays as it is, or moves to the nearer of the two bounds: one slow answer of a
  new leader must not move the slots.
- A sample whose bounds exclude those of older ones says that one of the two clocks has stepped
  (or the machine was asleep): the older samples are dropped. An average over samples was turned
  down: one slow answer would move every slot.
- A Quota bears the leader's time as well, but its time on the way is not known. It counts
  only while there is no sample of this leader.
- Until a leader's time is known, the offset is that of the node's wall clock at the start.
- A new leader (a higher epoch) starts without samples. The old offset serves until its
  first message.

The clock itself may be set back by what a leader says; that slot numbers do not go back is for
`Reporter`, which knows what it has reported. All times are seconds.
"""

import math
from collections import deque
from operator import attrgetter
from typing import NamedTuple

from sluicegate._validate import check_number, check_positive

__all__ = ["SlotClock"]

_SAMPLES = 8
# If the round trip took more than this part of a slot, the middle of a sample is not used.
_MAX_ROUND_TRIP = 0.5
# Two clocks drift apart by some microseconds in eight slots; a step is more than that.
_MAX_DRIFT = 0.001


class _Sample(NamedTuple):
    least: float  # the offset is at least this
    most: float
    round_trip: float


_round_trip = attrgetter("round_trip")


class SlotClock:
    """The leader's slots on the node's monotonic clock."""

    def __init__(self, slot_seconds: float, *, now: float, wall: float) -> None:
        self.slot_seconds = check_positive("slot_seconds", slot_seconds)
        self._offset = check_number("wall", wall) - check_number("now", now)
        self._samples: deque[_Sample] = deque(maxlen=_SAMPLES)
        self._hint: float | None = None
        self._epoch = -1
        self._round_trip = 0.0

    @property
    def has_leader_time(self) -> bool:
        """Whether a leader's time is known; else the offset is that of the wall clock."""
        return self._epoch >= 0

    @property
    def offset(self) -> float:
        """The leader's time less the node's monotonic time."""
        return self._offset

    @property
    def round_trip(self) -> float:
        """The shortest of the last ones, in seconds; 0 while none is known."""
        return self._round_trip

    def time(self, now: float) -> float:
        """The leader's time."""
        return now + self._offset

    def slot(self, now: float) -> int:
        """The slot at the node's time `now`."""
        return math.floor((now + self._offset) / self.slot_seconds)

    def begin(self, slot: int) -> float:
        """The node's time at which `slot` begins."""
        return slot * self.slot_seconds - self._offset

    def sample(self, epoch: int, *, sent: float, time: float, received: float) -> None:
        """The leader of `epoch` was at `time`, at some point between `sent` and `received`."""
        if not sent <= received:
            raise ValueError(f"received must not be before sent ({sent!r}), got {received!r}")
        is_first = not self.has_leader_time
        if not self._follows(epoch):
            return
        least, most = time - received, time - sent
        for older in self._samples:
            if least > older.most + _MAX_DRIFT or most < older.least - _MAX_DRIFT:
                self._samples.clear()
                break
        self._samples.append(_Sample(least, most, most - least))
        best = min(self._samples, key=_round_trip)
        self._round_trip = best.round_trip
        if is_first or best.round_trip <= _MAX_ROUND_TRIP * self.slot_seconds:
            self._offset = (best.least + best.most) / 2
        else:
            # A wide sample: the clock moves only as far as it must to agree with it.
            self._offset = min(max(self._offset, best.least), best.most)

    def hint(self, epoch: int, *, time: float, received: float) -> None:
        """The leader of `epoch` was at `time`, at some point before `received`."""
        if not self._follows(epoch) or self._samples:
            return
        # What was longest on its way is the furthest behind.
        if self._hint is None or time - received > self._hint:
            self._hint = self._offset = time - received

    def _follows(self, epoch: int) -> bool:
        if epoch > self._epoch:
            self._epoch = epoch
            self._samples.clear()
            self._round_trip = 0.0
            self._hint = None
        return epoch == self._epoch

    def __repr__(self) -> str:
        source = f"leader of epoch {self._epoch}" if self.has_leader_time else "wall clock"
        return f"SlotClock({self.slot_seconds:g} s, offset={self._offset:.6f} s by {source})"
