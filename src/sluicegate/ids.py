"""Snowflake ids: unique over a fleet without asking anyone, and sorted by time.

    0 | 41 bits: milliseconds since the epoch | 5: datacenter | 5: worker | 12: sequence

An id is made from the wall clock, the two numbers that tell this process from
all others, and a count within the millisecond. Three rules keep it unique:

- The 4,097th id of a millisecond waits for the next millisecond.
- A clock that steps back up to one second is waited out; beyond that
  `ClockMovedBackwards` is raised, and no id is made.
- After 2^41 milliseconds (69 years) the format is used up: `OverflowError`.

Thread-safe: an id is made in one piece of compiled code under the GIL, and every
wait starts over from the state as it then is.
"""

from sluicegate._ids import EPOCH, Snowflake, SnowflakeParts

__all__ = ["EPOCH", "Snowflake", "SnowflakeParts"]
