from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Literal, Protocol, final, overload

from sluicegate.clock import Clock
from sluicegate.quota.node.core._shared_header import SharedHeader
from sluicegate.quota.errors import Throttled

__all__ = ["Ticket", "UserTable"]

class _Clock(Protocol):
    def now(self) -> float: ...

@final
class Ticket:
    def __init__(self) -> None: ...
    def __reduce__(self) -> tuple[object, ...]: ...

@final
class UserTable:
    @property
    def header(self) -> SharedHeader: ...
    @property
    def node_id(self) -> str: ...
    @property
    def path(self) -> Path: ...
    @property
    def slot_seconds(self) -> float: ...
    @property
    def max_users(self) -> int: ...
    @property
    def lease(self) -> int: ...
    @property
    def clock(self) -> Clock: ...
    @property
    def reservation_windows(self) -> int: ...
    def __init__(
        self,
        node_id: str,
        services: Sequence[str] = (),
        *,
        shared: str | PathLike[str] | None = None,
        fallback: Mapping[str, float] | None = None,
        slot_seconds: float = 1.0,
        lease: int = 3,
        reservation_seconds: float = 60.0,
        max_users: int = 100_000,
        max_services: int = 64,
        clock: _Clock | None = None,
    ) -> None: ...
    @staticmethod
    def unlink(shared: str | PathLike[str]) -> bool: ...
    def close(self) -> None: ...
    def now(self) -> float: ...
    waiting: int
    def allows(
        self, service: str, user: str, expect: Mapping[str, float] | None = None, *, wait: float | None = 0.0
    ) -> bool: ...
    @overload
    def throttle(
        self,
        service: str,
        user: str,
        expect: Mapping[str, float] | None = None,
        *,
        wait: float | None = 0.0,
        ticket: Literal[False] = False,
    ) -> None: ...
    @overload
    def throttle(
        self,
        service: str,
        user: str,
        expect: Mapping[str, float] | None = None,
        *,
        wait: float | None = 0.0,
        ticket: Literal[True],
    ) -> Ticket: ...
    def try_throttle(
        self,
        service: str,
        user: str,
        expect: Mapping[str, float] | None = None,
        *,
        can_wait: bool = True,
        is_retry: bool = False,
        ticket: Ticket | None = None,
    ) -> bool: ...
    def consume(
        self, service: str, user: str, amounts: Mapping[str, float], ticket: Ticket | None = None
    ) -> None: ...
    def throttle_at(
        self,
        time: float,
        service: str,
        user: str,
        expect: Mapping[str, float] | None = None,
        can_wait: bool = False,
        is_retry: bool = False,
        ticket: Ticket | None = None,
    ) -> Throttled | Literal[False] | None: ...
    def consume_at(
        self, time: float, service: str, user: str, amounts: Mapping[str, float], ticket: Ticket | None = None
    ) -> None: ...
    def offer_at(
        self,
        time: float,
        service: str,
        user: str,
        amounts: Mapping[str, float],
        count: int,
        can_wait: bool = False,
        is_retry: bool = False,
    ) -> int: ...
    def state(self, time: float, service: str, user: str) -> str: ...
    def window(self, time: float) -> tuple[int, int, float, float, float]: ...
    def __len__(self) -> int: ...
