from typing import Final, NamedTuple, Protocol, Self

from typing_extensions import disjoint_base

__all__ = ["EPOCH", "Snowflake", "SnowflakeParts"]

EPOCH: Final[float]

class _Now(Protocol):
    def now(self) -> float: ...

class SnowflakeParts(NamedTuple):
    timestamp_ms: int
    datacenter: int
    worker: int
    sequence: int

@disjoint_base
class Snowflake:
    def __init__(
        self,
        datacenter: int = 0,
        worker: int = 0,
        *,
        epoch: float = ...,
        clock: _Now | None = None,
    ) -> None: ...
    @classmethod
    def from_env(cls, *, epoch: float = ..., clock: _Now | None = None) -> Self: ...
    @staticmethod
    def parse(id: int, *, epoch: float = ...) -> SnowflakeParts: ...
    def next(self) -> int: ...
    def next_many(self, n: int) -> list[int]: ...
    @property
    def datacenter(self) -> int: ...
    @property
    def worker(self) -> int: ...
    @property
    def epoch(self) -> float: ...
