"""`open_source`: creates the limits source from `--limits` or the argument of a `Central`."""

import inspect
from collections.abc import Callable, Iterable
from pathlib import Path

from sluicegate.errors import ConfigError
from sluicegate.quota.central.limit_sources.function import FunctionLimits
from sluicegate.quota.central.limit_sources.memory import MemoryLimits
from sluicegate.quota.central.limit_sources.redis_hash import RedisHash
from sluicegate.quota.central.limit_sources.source import Limits, LimitsSource
from sluicegate.quota.central.limit_sources.sqlite_file import SqliteFile
from sluicegate.quota.central.limit_sources.toml_file import TomlFile

__all__ = ["open_source"]

_SQLITE = (".db", ".sqlite", ".sqlite3")
_KINDS = "FILE.toml, FILE.db, FILE.sqlite, FILE.sqlite3, redis://, rediss:// or unix://"


def open_source(spec: "str | Path | LimitsSource | Callable[[], Limits] | Limits") -> LimitsSource:
    """The source that `spec` names, or is. Raises `ConfigError` if it is neither.

    A path's suffix says what it is; a function is called every few seconds; a list stays in memory.
    """
    if isinstance(spec, str) and "://" in spec:
        return RedisHash(spec)
    if isinstance(spec, str | Path):
        path = Path(spec)
        if path.suffix == ".toml":
            return TomlFile(path)
        if path.suffix in _SQLITE:
            return SqliteFile(path)
        raise ConfigError(f"invalid limits source: expected {_KINDS}, got {str(spec)!r}")
    if isinstance(spec, LimitsSource):
        return spec
    if inspect.iscoroutinefunction(spec):
        raise ConfigError(
            f"invalid limits source: expected a plain function, got a coroutine function: {spec!r}"
        )
    if callable(spec):
        return FunctionLimits(spec)
    if isinstance(spec, Iterable):
        return MemoryLimits(spec)
    raise ConfigError(
        f"invalid limits source: expected {_KINDS}, a function or a list of Entry, got {spec!r}"
    )
