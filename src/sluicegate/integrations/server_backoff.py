"""`ServerBackoff`: pauses that servers ask of their clients. The time is an argument.

A server asks in two ways. `Retry-After` of a 429 or 503, in seconds or as a date, and
`RateLimit` of any answer: a policy with nothing left (`r=0`) for `t` seconds. The first
wins where both are there. What cannot be read is ignored, as is the `RateLimit` of an
answer that a cache kept (`Age`), and nobody is believed beyond the longest pause: a
mistake of a server must not silence its clients for a year.
"""

import math
import re
import threading
from collections.abc import Callable
from datetime import UTC
from email.utils import parsedate_to_datetime

__all__ = ["ServerBackoff", "requested_pause"]

MAX_HOSTS = 10_000
BUSY = (429, 503)

_STRING = r'"(?:[^"\\]|\\["\\])*"'
_PARAMETER = rf'; *[a-z*][a-z0-9_.*-]*(?:=(?:{_STRING}|[^;," ]+))?'
_ITEM = re.compile(rf'[ \t]*(?:{_STRING}|[A-Za-z*][^;, "]*)((?:{_PARAMETER})*)[ \t]*(?:,|$)')
_NUMBER = re.compile(r"; *([rt])=([0-9]{1,15})(?![0-9.])")


def requested_pause(status: int, header: Callable[[str], str | None], wall_time: float) -> float:
    """Seconds of pause that a response asks for; 0 if it does not.

    `header` finds a field by its lower-case name; `wall_time` is Unix time.
    """
    after = header("retry-after")
    if after is not None and status in BUSY:
        seconds = _retry_after(after.strip(), wall_time)
        if seconds is not None:
            return seconds
    state = header("ratelimit")
    if state is None or (header("age") or "0").strip() != "0":
        return 0.0
    return _exhausted_seconds(state)


class ServerBackoff:
    """Until when to send nothing to each key (a host); thread-safe.

    At most 10,000 at a time; the one that ends first makes room.
    """

    def __init__(self, longest: float) -> None:
        self._longest = longest
        self._until: dict[str, float] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._until)

    def back_off(self, key: str, seconds: float, now: float) -> None:
        """Send nothing to `key` for `seconds` from now, unless it is paused for longer already."""
        if not seconds > 0.0:
            return
        until = now + min(seconds, self._longest)
        with self._lock:
            self._until[key] = max(until, self._until.get(key, -math.inf))
            if len(self._until) > MAX_HOSTS:
                self._until = {one: end for one, end in self._until.items() if end > now}
            if len(self._until) > MAX_HOSTS:
                del self._until[min(self._until, key=self._until.__getitem__)]

    def wait(self, key: str, now: float) -> float:
        """Seconds until `key` may be asked again; 0 is now."""
        with self._lock:
            until = self._until.get(key)
            if until is None:
                return 0.0
            if until <= now:
                del self._until[key]
                return 0.0
            return until - now


def _retry_after(text: str, wall_time: float) -> float | None:
    if text.isascii() and text.isdecimal():
        return float(text[:15])
    try:
        date = parsedate_to_datetime(text)
    except (ValueError, OverflowError, TypeError):
        return None
    if date.tzinfo is None:
        date = date.replace(tzinfo=UTC)
    return max(date.timestamp() - wall_time, 0.0)


def _exhausted_seconds(text: str) -> float:
    """The longest `t` of the policies with nothing left; 0 if the list cannot be read."""
    longest, at = 0.0, 0
    while at < len(text):
        item = _ITEM.match(text, at)
        if item is None:
            return 0.0
        numbers = dict(_NUMBER.findall(re.sub(_STRING, '""', item[1])))
        if int(numbers.get("r", 1)) == 0:
            longest = max(longest, float(numbers.get("t", 0)))
        at = item.end()
    return longest
