"""Limits in Redis: for centrals on several hosts that are to have the same ones.

    headgate:{limits}            a hash: ["service", "user"] -> the flat table, both as JSON
    headgate:{limits}:version    a number that each change makes larger

The braces keep both on one server of a cluster. A change and its number are one transaction. Who
writes the hash by hand makes the number larger (INCR), else nobody looks.

A Redis that does not answer, or that has lost the number after it once had one (restarted
without its data, say), is an error: what is missing there must not lift the limits here.
"""

import json
from collections.abc import Iterable
from time import monotonic
from typing import Any

from headgate.errors import ConfigError, HeadgateError
from headgate.quota.entries import Entry, read_tables, table_of
from headgate.stores import ErrorReply, RedisPool, pack

__all__ = ["RedisHash"]

_TIMEOUT = 2.0  # seconds, for each round trip
_AT_ONCE = 1000
_TRIES = 5


class RedisHash:
    """Limits in the Redis of a URL."""

    is_editable = True

    def __init__(self, url: str, *, prefix: str = "headgate:") -> None:
        try:
            self._pool = RedisPool(url, _TIMEOUT)
        except (ValueError, ModuleNotFoundError, OSError) as error:
            raise ConfigError(f"the limits cannot come from this Redis URL: {error}") from None
        self.name = f"{url.partition('://')[0]}://{self._pool.address}"
        self._hash = f"{prefix}{{limits}}"
        self._version = f"{prefix}{{limits}}:version"
        self._has_been_there = False

    def __repr__(self) -> str:
        return f"RedisHash({self.name!r})"

    def load(self) -> tuple[list[Entry], list[str]]:
        for _ in range(_TRIES):
            before = self.stamp()
            fields = self._scan()
            if self.stamp() == before:
                return _read(fields)
        raise ConfigError(f"the limits at {self.name} are changed faster than they can be read")

    def _scan(self) -> dict[bytes, bytes]:
        """The whole hash, in pieces: in one piece it may be larger than a reply may be."""
        fields: dict[bytes, bytes] = {}
        cursor = b"0"
        while True:
            (reply,) = self._ask([("HSCAN", self._hash, cursor, "COUNT", _AT_ONCE)])
            cursor, pairs = reply
            fields.update(zip(pairs[::2], pairs[1::2], strict=True))
            if cursor == b"0":
                return fields

    def stamp(self) -> object:
        (version,) = self._ask([("GET", self._version)])
        if version is not None:
            self._has_been_there = True
        elif self._has_been_there:
            raise ConfigError(
                f"the limits at {self.name} are gone: set them all anew, or bring its data back"
            )
        return version

    def put(self, entry: Entry) -> None:
        self.stamp()  # one entry alone must not take the place of limits that were lost
        self._change([("HSET", self._hash, *_field_and_value(entry))])

    def remove(self, service: str, user: str) -> bool:
        (removed, _) = self._change([("HDEL", self._hash, _field(service, user))])
        return bool(removed)

    def replace(self, entries: Iterable[Entry]) -> None:
        pairs = [_field_and_value(entry) for entry in entries]
        commands: list[tuple[Any, ...]] = [("DEL", self._hash)]
        for start in range(0, len(pairs), _AT_ONCE):
            some = pairs[start : start + _AT_ONCE]
            commands.append(("HSET", self._hash, *(word for pair in some for word in pair)))
        self._change(commands)

    def _change(self, commands: list[tuple[Any, ...]]) -> list[Any]:
        *_, replies = self._ask([("MULTI",), *commands, ("INCR", self._version), ("EXEC",)])
        for reply in replies:
            if isinstance(reply, ErrorReply):
                raise ConfigError(f"the limits at {self.name} cannot be changed: {reply}")
        return list(replies)

    def _ask(self, commands: list[tuple[Any, ...]]) -> list[Any]:
        payload = b"".join(pack(*words) for words in commands)
        try:
            replies = self._pool.exchange(
                self._hash.encode(), payload, len(commands), monotonic() + _TIMEOUT
            )
            for reply in replies:
                if isinstance(reply, ErrorReply):
                    raise reply
        except HeadgateError as error:
            raise ConfigError(f"the limits at {self.name} cannot be reached: {error}") from None
        return replies

    def close(self) -> None:
        self._pool.close()


def _field(service: str, user: str) -> str:
    return json.dumps([service, user], ensure_ascii=False)


def _field_and_value(entry: Entry) -> tuple[str, str]:
    return (
        _field(entry.service, entry.user),
        json.dumps(table_of(entry), ensure_ascii=False),
    )


def _read(fields: dict[bytes, bytes]) -> tuple[list[Entry], list[str]]:
    tables: list[object] = []
    bad: list[str] = []
    for field, value in sorted(fields.items()):
        try:
            table = json.loads(value)
            if [table["service"], table["user"]] != json.loads(field):
                raise ValueError
        except (ValueError, TypeError, LookupError, RecursionError):
            bad.append(
                f"the field {field.decode(errors='replace')!r}: expected a JSON object with this "
                f"service and user, got {value[:200].decode(errors='replace')!r}; skipped"
            )
        else:
            tables.append(table)
    entries, faults = read_tables(tables)
    return entries, bad + faults
