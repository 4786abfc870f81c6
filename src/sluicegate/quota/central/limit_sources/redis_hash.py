"""`RedisHash`: limits in Redis, for centrals on several hosts that share them.

    sluicegate:{limits}            a hash: ["service", "user"] -> the flat table, both as JSON
    sluicegate:{limits}:version    a number that increases with each change

The braces keep both on one server of a cluster. A change and its number are one script, not a
transaction: a script is one command, which is sent elsewhere as a whole when the server has
changed. After writing the hash by hand, increment the number (INCR): otherwise nobody reads it.

A Redis that does not answer, or that has lost the number after it once had one (restarted
without its data, say), is an error: what is missing there must not lift the limits here.
"""

import json
from collections.abc import Iterable
from typing import Any

from sluicegate.errors import ConfigError, SluicegateError, Unavailable
from sluicegate.quota.ledger.limit_entry import Entry, read_tables, to_dict
from sluicegate.redis_client import RedisPool
from sluicegate.redis_client.resp import ErrorReply

__all__ = ["RedisHash"]

_PUT = """
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
return redis.call('INCR', KEYS[2])
"""
_REMOVE = """
local removed = redis.call('HDEL', KEYS[1], ARGV[1])
redis.call('INCR', KEYS[2])
return removed
"""
_REPLACE = """
redis.call('DEL', KEYS[1])
for i = 1, #ARGV, 2 do redis.call('HSET', KEYS[1], ARGV[i], ARGV[i + 1]) end
return redis.call('INCR', KEYS[2])
"""
_TIMEOUT = 2.0  # seconds, for each round trip
_SCAN_COUNT = 1000
_TRIES = 5
# Errors that Redis repeats until somebody changes its configuration or data.
_CONFIG_ERRORS = ("ERR", "WRONGTYPE", "NOAUTH", "WRONGPASS", "NOPERM")


class RedisHash:
    """Limits in the Redis of a URL."""

    is_editable = True

    def __init__(self, url: str, *, prefix: str = "sluicegate:") -> None:
        try:
            self._pool = RedisPool(url, _TIMEOUT)
        except (ValueError, ModuleNotFoundError, OSError) as error:
            raise ConfigError(f"cannot use Redis as the limits source: {error}") from None
        self.name = f"{url.partition('://')[0]}://{self._pool.address}"
        self._hash = f"{prefix}{{limits}}"
        self._version = f"{prefix}{{limits}}:version"
        self._had_version = False

    def __repr__(self) -> str:
        return f"RedisHash({self.name!r})"

    def load(self) -> tuple[list[Entry], list[str]]:
        for _ in range(_TRIES):
            before = self.version_token()
            fields = self._scan()
            if self.version_token() == before:
                return _read(fields)
        raise ConfigError(
            f"cannot read limits from {self.name}: they change faster than they can be read"
        )

    def _scan(self) -> dict[bytes, bytes]:
        """The whole hash, in pieces: in one piece it may be larger than a reply may be."""
        fields: dict[bytes, bytes] = {}
        cursor = b"0"
        while True:
            cursor, pairs = self._call("HSCAN", self._hash, cursor, "COUNT", _SCAN_COUNT)
            fields.update(zip(pairs[::2], pairs[1::2], strict=True))
            if cursor == b"0":
                return fields

    def version_token(self) -> object:
        version: object = self._call("GET", self._version)
        if version is not None:
            self._had_version = True
        elif self._had_version:
            raise ConfigError(
                f"limits at {self.name} are lost: set them all again, or restore the data of Redis"
            )
        return version

    def is_own_write(self, before: object, after: object) -> bool:
        if not isinstance(before, bytes) or not isinstance(after, bytes):
            return False
        return before.isdigit() and after.isdigit() and int(after) == int(before) + 1

    def put(self, entry: Entry) -> None:
        self.version_token()  # a single entry must not replace limits that were lost
        self._run(_PUT, *_field_and_value(entry))

    def remove(self, service: str, user: str) -> bool:
        return bool(self._run(_REMOVE, _field(service, user)))

    def replace(self, entries: Iterable[Entry]) -> None:
        self._run(_REPLACE, *(word for entry in entries for word in _field_and_value(entry)))

    def _run(self, script: str, *arguments: str) -> Any:
        return self._call("EVAL", script, 2, self._hash, self._version, *arguments)

    def _call(self, *words: bytes | str | int) -> Any:
        try:
            return self._pool.call(*words, key=self._hash.encode())
        except ErrorReply as error:
            if error.code in _CONFIG_ERRORS and not error.is_of_replica:
                raise ConfigError(f"cannot use limits at {self.name}: {error}") from None
            raise Unavailable(f"cannot read or write limits at {self.name}: {error}") from None
        except SluicegateError as error:
            raise Unavailable(f"cannot reach limits at {self.name}: {error}") from None

    def close(self) -> None:
        self._pool.close()


def _field(service: str, user: str) -> str:
    return json.dumps([service, user], ensure_ascii=False)


def _field_and_value(entry: Entry) -> tuple[str, str]:
    return (
        _field(entry.service, entry.user),
        json.dumps(to_dict(entry), ensure_ascii=False),
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
                f"field {field.decode(errors='replace')!r}: expected a JSON object with this "
                f"service and user, got {value[:200].decode(errors='replace')!r}; skipped"
            )
        else:
            tables.append(table)
    entries, faults = read_tables(tables)
    return entries, bad + faults
