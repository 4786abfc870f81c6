# cython: language_level=3, binding=False, embedsignature=True, embedsignature.format=clinic
"""The compiled part of `sluicegate.ids`, which says what it is for."""

import os
from typing import NamedTuple

from cpython.exc cimport PyErr_CheckSignals
from libc.math cimport fabs, floor
from libc.stdint cimport int64_t, uint64_t

from sluicegate._clock cimport realtime_ms, wait_until_realtime_ms

from sluicegate.clock import SystemClock
from sluicegate.errors import ClockMovedBackwards, ConfigError

__all__ = ["EPOCH", "Snowflake", "SnowflakeParts"]

EPOCH = 1577836800.0  # 2020-01-01T00:00:00Z

cdef enum:
    SEQUENCES = 1 << 12
    WORKERS = 1 << 5
    WAITED_OUT_MS = 1000
    MOST_AT_ONCE = 1000000000

cdef int64_t TIMESTAMPS = (<int64_t>1) << 41


class SnowflakeParts(NamedTuple):
    """What an id says: when it was made (Unix time, ms), where, and its place in that millisecond."""

    timestamp_ms: int
    datacenter: int
    worker: int
    sequence: int


cdef class Snowflake:
    """Makes ids for one worker; `datacenter` and `worker` are 0 to 31."""

    cdef int64_t _epoch_ms
    cdef int64_t _last_ms
    cdef int64_t _sequence
    cdef uint64_t _place
    cdef object _clock
    cdef object _wall

    def __init__(self, datacenter=0, worker=0, *, epoch=EPOCH, clock=None):
        _check_number("datacenter", datacenter)
        _check_number("worker", worker)
        self._epoch_ms = _epoch_ms(epoch)
        self._last_ms = -1
        self._sequence = 0
        self._place = (<uint64_t>datacenter << 5 | <uint64_t>worker) << 12
        if clock is not None and not callable(getattr(clock, "now", None)):
            raise TypeError(f"clock must have a method now(), got {clock!r}")
        self._clock = None if type(clock) is SystemClock else clock
        if self._clock is not None:
            self._wall = getattr(clock, "wall", clock.now)

    @classmethod
    def from_env(cls, *, epoch=EPOCH, clock=None):
        """Take the numbers from `SLUICEGATE_DATACENTER` (default 0) and `SLUICEGATE_WORKER`."""
        if not os.environ.get("SLUICEGATE_WORKER"):
            raise ConfigError("SLUICEGATE_WORKER is not set: give each worker a number from 0 to 31")
        return cls(
            _number_from_env("SLUICEGATE_DATACENTER"),
            _number_from_env("SLUICEGATE_WORKER"),
            epoch=epoch,
            clock=clock,
        )

    @staticmethod
    def parse(id, *, epoch=EPOCH):
        """Take an id apart. An id made with another epoch needs that epoch here too."""
        if not isinstance(id, int):
            raise TypeError(f"an id is an int, got {id!r}")
        if not 0 <= id < 1 << 63:
            raise ValueError(f"an id has 63 bits and no sign, got {id!r}")
        return SnowflakeParts(
            (id >> 22) + _epoch_ms(epoch), id >> 17 & 31, id >> 12 & 31, id & SEQUENCES - 1
        )

    def next(self):
        """Return a new id, larger than all before it."""
        while self._take(1) == 0:
            pass
        return self._newest()

    def next_many(self, n):
        """Return `n` new ids in ascending order."""
        cdef list ids = []
        cdef int64_t wanted, taken, i
        cdef uint64_t newest
        if not isinstance(n, int):
            raise TypeError(f"n must be an int, got {n!r}")
        if not 1 <= n <= MOST_AT_ONCE:
            raise ValueError(f"n must be at least 1 and at most {MOST_AT_ONCE}, got {n!r}")
        wanted = n
        while wanted > 0:
            taken = self._take(wanted)
            if taken:
                newest = self._newest()
                for i in range(taken):
                    ids.append(newest - <uint64_t>(taken - 1 - i))
                wanted -= taken
        return ids

    cdef uint64_t _newest(self) noexcept:
        return <uint64_t>self._last_ms << 22 | self._place | <uint64_t>self._sequence

    cdef int64_t _take(self, int64_t wanted) except -1:
        """Take up to `wanted` sequence numbers, or wait and take none."""
        cdef int64_t now_ms = self._now_ms()
        cdef int64_t taken
        if now_ms > self._last_ms:
            self._last_ms = now_ms
            self._sequence = -1
        elif now_ms < self._last_ms - WAITED_OUT_MS:
            raise ClockMovedBackwards(
                (self._last_ms + self._epoch_ms) / 1000.0, (now_ms + self._epoch_ms) / 1000.0
            )
        elif now_ms < self._last_ms:
            self._wait_for(self._last_ms)
            return 0
        elif self._sequence == SEQUENCES - 1:
            self._wait_for(self._last_ms + 1)
            return 0
        taken = min(wanted, SEQUENCES - 1 - self._sequence)
        self._sequence += taken
        return taken

    cdef int64_t _now_ms(self) except? -1:
        cdef int64_t now_ms
        if self._clock is None:
            now_ms = realtime_ms() - self._epoch_ms
        else:
            # Clocks in seconds hold milliseconds as fractions: 0.123 s is 122.99999 ms
            # in binary, and a thousandth of a millisecond is nothing.
            now_ms = <int64_t>floor(<double>self._wall() * 1000.0 + 0.001) - self._epoch_ms
        if now_ms < 0:
            raise ValueError(
                f"the clock says {(now_ms + self._epoch_ms) / 1000.0} (Unix time), "
                f"which is before the epoch {self._epoch_ms / 1000.0}"
            )
        if now_ms >= TIMESTAMPS:
            raise OverflowError(
                f"the 41 bits of the timestamp ended {(now_ms - TIMESTAMPS) / 1000.0:.3f} s ago; "
                f"take a later epoch than {self._epoch_ms / 1000.0}"
            )
        return now_ms

    cdef int _wait_for(self, int64_t ms) except -1:
        if self._clock is None:
            with nogil:
                wait_until_realtime_ms(ms + self._epoch_ms)
            PyErr_CheckSignals()
        else:
            self._clock.sleep(max(0.0, (ms + self._epoch_ms) / 1000.0 - self._wall()))
        return 0

    def __reduce__(self):
        raise TypeError("a Snowflake cannot be copied: two of them would make the same ids")

    @property
    def datacenter(self):
        return int(self._place >> 17)

    @property
    def worker(self):
        return int(self._place >> 12 & 31)

    @property
    def epoch(self):
        """Unix time of the first millisecond, in seconds."""
        return self._epoch_ms / 1000.0

    def __repr__(self):
        return f"Snowflake(datacenter={self.datacenter}, worker={self.worker})"


def _check_number(name, value):
    if not isinstance(value, int):
        raise TypeError(f"{name} must be an int from 0 to 31, got {value!r}")
    if not 0 <= value < WORKERS:
        raise ValueError(f"{name} must be from 0 to 31, got {value!r}")


def _number_from_env(name):
    text = os.environ.get(name) or "0"
    if not (text.isdecimal() and len(text) <= 2 and int(text) < WORKERS):
        raise ConfigError(f"{name} must be a number from 0 to 31, got {text!r}")
    return int(text)


cdef int64_t _epoch_ms(epoch) except? -1:
    cdef double seconds = epoch
    if not fabs(seconds) < 1e12:
        raise ValueError(f"epoch must be a Unix time in seconds, below 1e12, got {epoch!r}")
    return <int64_t>floor(seconds * 1000.0 + 0.5)
