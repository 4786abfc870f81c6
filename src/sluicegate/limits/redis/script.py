"""`Script`: builds the commands that ask Redis for a decision, and reads the replies.

The script (in `lua/`) is called by its hash, and sent whole when Redis does not know
it (any more). Of a command only the key and the cost change, so the rest is packed once.

Keys in Redis, for the limiter's key `user:42` and the limit `100/minute`:

    sluicegate:{user:42}:b60       b bucket, f fixed window, c sliding counter, l log; the period
    sluicegate:{user:42}:b60:2     a second limit over the same period
    sluicegate:{}nodes:HASH        who shares the limit; the hash is of the limits

What stands between the braces is the hash tag: all keys of one key are on one server of a
cluster. The amount is not in the name, so a changed limit takes over what was used; the
algorithm is, so a changed one starts anew and never finds a value of another kind.
"""

import hashlib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from sluicegate.errors import ProtocolError
from sluicegate.limits._decision import Decision
from sluicegate.limits.limit import Limit
from sluicegate.redis_client.resp import pack

__all__ = ["Grant", "Script"]

_CLOCK_EPSILON = 1e-9  # seconds, as in `Keyed`: for the noise of doubles
_ONE = b"$1\r\n1\r\n"
_LUA = Path(__file__).parent / "lua"
_FILES = {
    "bucket": ["prelude", "fast_path", "interface", "bucket", "decide"],
    "fixed": ["prelude", "interface", "window", "fixed", "decide"],
    "counter": ["prelude", "interface", "window", "counter", "decide"],
    "log": ["prelude", "interface", "log", "decide"],
}
_FAMILIES = {
    "token_bucket": "bucket",
    "leaky_bucket": "bucket",
    "fixed_window": "fixed",
    "sliding_counter": "counter",
    "sliding_window": "log",
}


class Grant:
    """The answer to a lease: `amount` is what was granted (0: nothing), in units.

    `retry_after`: seconds until what was needed could be granted. `in_use`: units that are
    in use of the limit that has the least, this grant included.
    """

    __slots__ = ("amount", "in_use", "index", "retry_after")

    def __init__(self, amount: float, index: int, retry_after: float, in_use: float) -> None:
        self.amount = amount
        self.index = index
        self.retry_after = retry_after
        self.in_use = in_use


class Script:
    """The commands for some limits. `bursts` is what each lets through at once."""

    def __init__(self, limits: Sequence[Limit], algorithm: str, prefix: str) -> None:
        self.limits = tuple(limits)
        self.bursts = tuple(_burst(limit, algorithm) for limit in limits)
        shared = f"{algorithm} {'; '.join(map(str, limits))}".encode()
        self.nodes_key = (
            prefix.encode()
            + b"{}nodes:"
            + hashlib.blake2b(shared, digest_size=8).hexdigest().encode()
        )
        self._family = _FAMILIES[algorithm]
        source = _source(*_FILES[self._family])
        self._announcement = _source("announce")
        self._prefix = prefix.encode() + b"{"
        self._suffixes = _suffixes(self.limits, self._family)
        self._numbers = [
            number
            for limit, burst in zip(self.limits, self.bursts, strict=True)
            for number in _numbers(limit, burst, self._family)
        ]
        self._by_hash = [
            b"EVALSHA",
            hashlib.sha1(source, usedforsecurity=False).hexdigest().encode(),
        ]
        self._whole = [b"EVAL", source]
        self._heads = {
            (verb, is_whole): self._head(verb, is_whole)
            for verb in ("allow", "check", "refund", "lease")
            for is_whole in (False, True)
        }
        self._tails = {verb: self._tail(verb) for verb in ("allow", "check", "refund", "lease")}
        self._lengths = [len(self._prefix) + len(suffix) for suffix in self._suffixes]
        self._pattern = self._make_pattern()

    def keys(self, name: bytes) -> list[bytes]:
        """The keys in Redis of an encoded key, one for each limit."""
        return [self._prefix + name + suffix for suffix in self._suffixes]

    def command(
        self, verb: str, name: bytes, cost: float, want: float | None = None, *, whole: bool = False
    ) -> bytes:
        """`whole` sends the script itself, for a server that does not know it."""
        parts = [self._heads[verb, whole]]
        for suffix in self._suffixes:
            length = len(self._prefix) + len(name) + len(suffix)
            parts.append(b"$%d\r\n%b%b%b\r\n" % (length, self._prefix, name, suffix))
        parts.append(self._tails[verb])
        parts.append(_ONE if cost == 1.0 else _bulk(cost))
        if verb == "lease":
            parts.append(_bulk(cost if want is None else want))
        return b"".join(parts)

    def fast_path(self, name: bytes) -> bytes:
        """`command("allow", name, 1.0)`, which is what nearly every call sends."""
        if len(self._lengths) == 1:
            return self._pattern % (self._lengths[0] + len(name), name)
        words: list[int | bytes] = []
        for length in self._lengths:
            words += (length + len(name), name)
        return self._pattern % tuple(words)

    def command_at(
        self, microseconds: int, verb: str, name: bytes, *costs: float, whole: bool = True
    ) -> bytes:
        """As `command`, at a time of one's own: so tests can hold the script beside `Keyed`."""
        head: list[bytes | str | int] = [
            *(self._whole if whole else self._by_hash),
            len(self.limits),
            *self.keys(name),
            verb,
            microseconds,
        ]
        return pack(*head, *self._numbers, *costs)

    def announce(self, name: str, ttl: float) -> bytes:
        """Sent whole each time: it is short, and seldom."""
        return pack("EVAL", self._announcement, 1, self.nodes_key, name, ttl * 1e6)

    def delete(self, name: bytes) -> bytes:
        return pack("DEL", *self.keys(name))

    def leave(self, name: str) -> bytes:
        return pack("ZREM", self.nodes_key, name)

    def read_allow(self, reply: object) -> bool:
        if reply not in (0, 1):
            raise ProtocolError(
                f"invalid reply from the Redis script: expected 0 or 1, got {reply!r}"
            )
        return reply == 1

    def read_decision(self, reply: object) -> Decision:
        allowed, index, remaining, retry_after, reset_after = self._five(reply)
        limit = self.limits[index]
        return Decision(allowed == 1, limit, remaining, retry_after * 1e-6, reset_after * 1e-6)

    def read_grant(self, reply: object) -> Grant:
        _, index, amount, retry_after, in_use = self._five(reply)
        return Grant(amount, index, retry_after * 1e-6, in_use)

    def _five(self, reply: object) -> tuple[int, int, float, float, float]:
        words = reply.split() if isinstance(reply, bytes) else []
        try:
            allowed, index, one, two, three = words
            if 0 <= int(index) < len(self.limits):
                return int(allowed), int(index), float(one), float(two), float(three)
        except ValueError:
            pass
        raise ProtocolError(
            f"invalid reply from the Redis script: expected five numbers, got {reply!r}"
        )

    def _head(self, verb: str, is_whole: bool) -> bytes:
        words: list[bytes | int] = [*(self._whole if is_whole else self._by_hash), len(self.limits)]
        count = (
            len(words) + len(self.limits) + 2 + len(self._numbers) + (2 if verb == "lease" else 1)
        )
        return b"*%d\r\n" % count + pack(*words).partition(b"\r\n")[2]

    def _make_pattern(self) -> bytes:
        """The whole command `allow` for a cost of 1, with a gap for each length and name."""
        keys = b"".join(
            b"$%%d\r\n%b%%b%b\r\n" % (self._prefix.replace(b"%", b"%%"), suffix)
            for suffix in self._suffixes
        )
        return self._heads["allow", False] + keys + self._tails["allow"] + _ONE

    def _tail(self, verb: str) -> bytes:
        return pack(verb, "", *self._numbers).partition(b"\r\n")[2]


def _source(*names: str) -> bytes:
    return b"\n".join((_LUA / f"{name}.lua").read_bytes() for name in names)


def _burst(limit: Limit, algorithm: str) -> float:
    if algorithm == "leaky_bucket":
        return 1.0
    if algorithm == "token_bucket":
        return max(limit.amount, 1.0) if limit.burst is None else limit.burst
    return limit.amount


def _numbers(limit: Limit, burst: float, family: str) -> list[float]:
    """Limit, rate, span, slack and clock_epsilon as the script wants them, in microseconds."""
    clock_epsilon = (
        _CLOCK_EPSILON if family == "bucket" else min(_CLOCK_EPSILON, limit.per / 1000.0)
    )
    slack = min(max(1e-9, limit.rate * clock_epsilon), 1e-3 * min(burst, 1.0))
    return [burst, limit.rate / 1e6, limit.per * 1e6, slack, clock_epsilon * 1e6]


def _suffixes(limits: Sequence[Limit], family: str) -> list[bytes]:
    seen: Counter[float] = Counter()
    suffixes = []
    for limit in limits:
        seen[limit.per] += 1
        again = f":{seen[limit.per]}" if seen[limit.per] > 1 else ""
        suffixes.append(f"}}:{family[0]}{limit.per:.15g}{again}".encode())
    return suffixes


def _bulk(number: float) -> bytes:
    text = repr(number).encode()
    return b"$%d\r\n%b\r\n" % (len(text), text)
