from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, final

__all__ = ["Head"]

@final
class Head:
    @property
    def slot_seconds(self) -> float: ...
    @property
    def boot(self) -> int: ...
    @property
    def sequence(self) -> int: ...
    @property
    def has_asks(self) -> bool: ...
    def __init__(self, path: str | Path, node_id: str, slot_seconds: float, *, now: float, wall: float) -> None: ...
    def publish(
        self,
        *,
        version: int,
        begin: float,
        turn_at: float,
        slot: int,
        held: int,
        epoch: int,
        window: int,
        generation: int,
        slot_holds: bool,
        nodes: int,
        views: Sequence[tuple[int, Mapping[str, Mapping[str, float]]]],
    ) -> None: ...
    def base(self) -> dict[str, Any]: ...
    def next_sequence(self) -> int: ...
    def service_name(self, number: int) -> str: ...
    def take_asks(self) -> list[tuple[str, str]]: ...
    def close(self) -> None: ...
