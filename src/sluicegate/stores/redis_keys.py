"""The names of a cluster's keys in Redis, in two layouts.

Our own: all keys of a cluster have its name as their hash tag, so they are on one server of a Redis
Cluster. In names and labels `:` is written `%3A` and `%` is written `%25`, so that no two counters
have one key:

    sluicegate:{shop}:writers                                  who is live: a sorted set
    sluicegate:{shop}:ads%3Apass:every_60                      a periodic counter: a hash
    sluicegate:{shop}:ads%3Apass:every_60:de                   the same with a label
    sluicegate:{shop}:ads%3Apass:every_86400_Asia/Tokyo        days of a time zone
    sluicegate:{shop}:clicks:1700000000_1700086400             one with a begin and an end
    sluicegate:{shop}:clicks:always                            one with neither

Of go-cluster-limiter: the totals are where its nodes add to them, and a hash beside them has what
only our nodes know. Periodic limiters have one pair of totals for all time there:

    shopads:pass####-2208988800_32503680000####:sum            a number: INCRBYFLOAT
    shopads:pass####-2208988800_32503680000####:cnt            a number: INCRBY
    shopads:pass####-2208988800_32503680000####:sluicegate:ads%3Apass:every_60
    shop:sluicegate:writers

The script finds the totals by the last `:sluicegate:` of the hash's name, so a name or a label
`sluicegate` is written `%73luicegate` after it.
"""

import math
from datetime import datetime
from typing import Protocol

from sluicegate._validate import encode_utf8
from sluicegate.stores.store import CounterKey

__all__ = ["GoKeys", "KeyNames", "OwnKeys"]

_SEPARATOR = "####"
_MARK = "sluicegate"
_ESCAPED_MARK = "%73luicegate"


class KeyNames(Protocol):
    def writers(self, cluster: str) -> bytes:
        """The key of the sorted set of writers."""
        ...

    def counter(self, cluster: str, key: CounterKey) -> bytes:
        """The key of a counter's hash."""
        ...


class OwnKeys:
    def __init__(self, prefix: str) -> None:
        if "{" in prefix or "}" in prefix:
            raise ValueError(
                f"prefix must not contain braces, which mark the hash tag, got {prefix!r}"
            )
        self._prefix = prefix

    def writers(self, cluster: str) -> bytes:
        return encode_utf8("the cluster's name", self._start(cluster) + "writers")

    def counter(self, cluster: str, key: CounterKey) -> bytes:
        return encode_utf8("the counter's name", self._start(cluster) + _identity(key))

    def _start(self, cluster: str) -> str:
        if "{" in cluster or "}" in cluster:
            raise ValueError(
                "the name of a cluster in Redis must not contain braces, which mark the hash tag, "
                f"got {cluster!r}"
            )
        return f"{self._prefix}{{{cluster}}}:"


class GoKeys:
    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._all_time = f"{_unix_time(1900)}_{_unix_time(3000)}"

    def writers(self, cluster: str) -> bytes:
        return encode_utf8("the cluster's name", f"{self._prefix}{cluster}:{_MARK}:writers")

    def counter(self, cluster: str, key: CounterKey) -> bytes:
        span = self._all_time
        if key.end and not key.period:
            span = f"{math.floor(key.begin)}_{math.floor(key.end)}"
        parts = [f"{self._prefix}{cluster}{key.name}", span, *(sorted(key.labels) or [""])]
        identity = [_ESCAPED_MARK if part == _MARK else part for part in _identity(key).split(":")]
        name = ":".join([_SEPARATOR.join(parts), _MARK, *identity])
        return encode_utf8("the counter's name", name)


def _identity(key: CounterKey) -> str:
    """What `CounterKey.identity` says, as text."""
    if key.period:
        schedule = f"every_{_number(key.period)}" + (f"_{key.zone}" if key.zone else "")
    elif key.end:
        schedule = f"{_number(key.begin)}_{_number(key.end)}"
    else:
        schedule = "always"
    return ":".join([_escape(key.name), schedule, *map(_escape, key.labels)])


def _escape(text: str) -> str:
    return text.replace("%", "%25").replace(":", "%3A")


def _number(value: float) -> str:
    return f"{value:.0f}" if value == math.floor(value) else repr(value)


def _unix_time(year: int) -> int:
    """The first second of a year, local time."""
    return math.floor(datetime(year, 1, 1).astimezone().timestamp())
