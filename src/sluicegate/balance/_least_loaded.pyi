from collections.abc import Iterable

from typing_extensions import disjoint_base

from sluicegate.balance._balancer import Balancer
from sluicegate.balance.server import Health, Server
from sluicegate.clock import Clock

__all__ = ["LeastActive", "LeastConnections", "PeakEwma"]

@disjoint_base
class LeastActive(Balancer): ...

class LeastConnections(Balancer): ...

@disjoint_base
class PeakEwma(Balancer):
    def __init__(
        self,
        servers: Iterable[Server | str] = (),
        *,
        decay: float = 10.0,
        health: Health | None = None,
        load_decay: float = 10.0,
        clock: Clock | None = None,
        seed: int | None = None,
    ) -> None: ...
