from collections.abc import Iterable

from typing_extensions import disjoint_base

from sluicegate.balance._balancer import Balancer, Call
from sluicegate.balance.server import Health, Server
from sluicegate.clock import Clock

__all__ = ["ConsistentHash"]

@disjoint_base
class ConsistentHash(Balancer):
    def __init__(
        self,
        servers: Iterable[Server | str] = (),
        *,
        bound: float | None = None,
        method: str = "ring",
        points: int = 2048,
        health: Health | None = None,
        load_decay: float = 10.0,
        clock: Clock | None = None,
        seed: int | None = None,
    ) -> None: ...
