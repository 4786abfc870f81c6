"""`RedisStore`: the counters of a cluster in Redis, one round trip for each sync.

One script (`lua/sync.lua`) carries out a whole sync, with the semantics of `MemoryStore`. One with
very many updates takes several calls, for Redis does nothing else while a script runs; each
counter's record guards it by the number of the request, so each call can be repeated. Numbers go
both ways as packed doubles. The time is that of Redis, so that all nodes have one clock.
`redis_keys.py` has the names of the keys.

A request that timed out may still be carried out, even after a newer one: its number says that it
is old. A request that found Redis empty brings back what its writer has counted in this period.

A key that cannot be used, for it has another type or was damaged, is skipped and logged; the other
counters of the request are synced.
"""

import hashlib
import logging
import math
import struct
from pathlib import Path
from time import monotonic
from typing import Literal

from sluicegate._validate import check_positive, encode_utf8
from sluicegate.errors import ProtocolError
from sluicegate.redis_client import ErrorReply, RedisPool, pack
from sluicegate.stores.redis_keys import GoKeys, KeyNames, OwnKeys
from sluicegate.stores.store import (
    FOLD_AFTER,
    KEEP_AFTER_END,
    REMEMBER_WRITERS,
    CounterKey,
    CounterTotals,
    SyncReply,
    SyncRequest,
    check_updates,
)

__all__ = ["RedisStore"]

_LUA = Path(__file__).parent / "lua"
_UPDATE = struct.Struct("<9d")
_TOTALS = struct.Struct("<6d")
_TIME = struct.Struct("<d")
_MOST_UPDATES = 2000  # of one call: some 10 ms in Redis
_MOST_NAMES = 100_000  # names of keys that are remembered
_LAST_EXPIRY = 1e12  # Unix time: Redis refuses what its milliseconds cannot hold
_LAST_TIME = 1e11  # Unix time, in the year 5138: later than that is no clock

log = logging.getLogger("sluicegate.stores")


class RedisStore:
    """Counters in the Redis of a URL. `timeout`: seconds for one call of at most 2,000 updates.

    `layout="go"` shares the totals with nodes of go-cluster-limiter: `prefix` is the prefix of its
    store, and the cluster has the name of its factory.
    """

    def __init__(
        self,
        url: str,
        prefix: str = "sluicegate:",
        layout: Literal["sluicegate", "go"] = "sluicegate",
        *,
        timeout: float = 1.0,
    ) -> None:
        if layout not in ("sluicegate", "go"):
            raise ValueError(f"layout must be 'sluicegate' or 'go', got {layout!r}")
        if not isinstance(prefix, str):
            raise TypeError(f"prefix must be a str, got {prefix!r}")
        if prefix:
            encode_utf8("prefix", prefix)
        self._timeout = check_positive("timeout", timeout)
        self._names: KeyNames = GoKeys(prefix) if layout == "go" else OwnKeys(prefix)
        self._known: dict[tuple[str, CounterKey], bytes] = {}
        self._unusable: set[bytes] = set()  # keys that were skipped and logged
        totals = "go_totals.lua" if layout == "go" else "own_totals.lua"
        self._script = ((_LUA / totals).read_text() + (_LUA / "sync.lua").read_text()).encode()
        self._hash = hashlib.sha1(self._script, usedforsecurity=False).hexdigest()
        self._pool = RedisPool(url, self._timeout)
        if layout == "go" and self._pool.is_cluster:
            raise ValueError(
                f"layout='go' cannot be used with a Redis Cluster: its keys have no hash tag: {url}"
            )

    def sync(self, request: SyncRequest) -> SyncReply:
        return self._sync(request, "")

    def close(self) -> None:
        self._pool.close()

    def __repr__(self) -> str:
        return f"RedisStore({self._pool.address!r})"

    def _sync(self, request: SyncRequest, time: float | str) -> SyncReply:
        """Carry out a request at a time: empty is the time of Redis. Tests give another one."""
        updates = request.updates
        check_updates(updates)
        totals: list[CounterTotals] = []
        skipped: set[int] = set()
        for first in range(0, max(len(updates), 1), _MOST_UPDATES):
            part = request._replace(updates=updates[first : first + _MOST_UPDATES])
            reply = self._call(part, time)
            totals += reply.totals
            skipped.update(first + place for place in reply.skipped)
        return SyncReply(reply.time, reply.nodes, totals, frozenset(skipped))

    def _call(self, request: SyncRequest, time: float | str) -> SyncReply:
        writers = self._names.writers(request.cluster)
        words: list[bytes | str | int | float] = [len(request.updates) + 1, writers]
        names = self._key_names(request)
        words += names
        words += [request.writer, request.number, request.live_for, int(request.may_fold)]
        words += [FOLD_AFTER, REMEMBER_WRITERS, time]
        words += _pack_updates(request)
        deadline = monotonic() + self._timeout
        (reply,) = self._pool.exchange(writers, pack("EVALSHA", self._hash, *words), 1, deadline)
        if isinstance(reply, ErrorReply) and reply.code == "NOSCRIPT":
            command = pack("EVAL", self._script, *words)
            (reply,) = self._pool.exchange(writers, command, 1, deadline)
        if isinstance(reply, ErrorReply):
            raise reply
        answer, errors = _read_reply(reply, len(request.updates))
        if errors or self._unusable:
            self._log_unusable(names, errors)
        return answer

    def _log_unusable(self, names: list[bytes], errors: dict[int, str]) -> None:
        """Log the keys that were skipped, each once until it can be used again."""
        self._unusable -= {name for place, name in enumerate(names) if place not in errors}
        for place, error in errors.items():
            name = names[place]
            if name not in self._unusable:
                self._unusable.add(name)
                log.error(
                    "Redis key %s cannot be used, so its counter is not synced: %s",
                    *(name.decode(), error),
                )

    def _key_names(self, request: SyncRequest) -> list[bytes]:
        cluster, known = request.cluster, self._known
        if len(known) > _MOST_NAMES:
            known.clear()
        names = []
        for update in request.updates:
            name = known.get((cluster, update.key))
            if name is None:
                name = known[cluster, update.key] = self._names.counter(cluster, update.key)
            names.append(name)
        return names


def _pack_updates(request: SyncRequest) -> list[bytes]:
    packed = []
    for key, total, count, rate, want, unit, ceiling in request.updates:
        expire_at = math.ceil(min(key.end + KEEP_AFTER_END, _LAST_EXPIRY)) if key.end else 0
        packed.append(
            _UPDATE.pack(key.begin, key.period, expire_at, total, count, rate, want, unit, ceiling)
        )
    return packed


def _read_reply(reply: object, count: int) -> tuple[SyncReply, dict[int, str]]:
    """The reply, and the errors of updates that were skipped, by place."""
    if isinstance(reply, list) and len(reply) == 4:
        time, nodes, totals, skipped = reply
        if (
            isinstance(time, bytes)
            and len(time) == _TIME.size
            and isinstance(nodes, int)
            and isinstance(totals, bytes)
            and len(totals) == count * _TOTALS.size
        ):
            (now,) = _TIME.unpack(time)
            rows = list(_TOTALS.iter_unpack(totals))
            errors = _read_errors(skipped, count)
            if (
                errors is not None
                and 0.0 <= now <= _LAST_TIME
                and all(math.isfinite(sum(row)) for row in rows)
            ):
                read = [_read_totals(*row) for row in rows]
                return SyncReply(now, nodes, read, frozenset(errors)), errors
    raise ProtocolError(f"invalid reply from Redis to a sync of {count} counters: {reply!r:.200}")


def _read_errors(skipped: object, count: int) -> dict[int, str] | None:
    """Errors by the place of their update; None if they are malformed."""
    if not isinstance(skipped, list):
        return None
    errors = {}
    for one in skipped:
        match one:
            case [int(place), bytes(error)] if 0 <= place < count:
                errors[place] = error.decode(errors="replace")
            case _:
                return None
    return errors


def _read_totals(
    total: float, count: float, rate: float, lead: float, held: float, granted: float
) -> CounterTotals:
    return CounterTotals(total, int(count), rate, lead, held, granted)
