from collections.abc import Callable, Iterable
from typing import TypeAlias, final

from sluicegate.quota.ledger._service_ledger import ServiceLedger
from sluicegate.quota.messages import Hint, Share, UserAsk

__all__ = ["Granter"]

# node -> (user -> resource -> Share, user -> Hint)
_Answers: TypeAlias = dict[str, tuple[dict[str, dict[str, Share]], dict[str, Hint]]]

@final
class Granter:
    def __init__(
        self,
        service_ledger: ServiceLedger,
        resources_of: Callable[[str], Iterable[str] | None],
    ) -> None: ...
    def ask(
        self,
        time: float,
        node_id: str,
        users: dict[str, UserAsk],
        answers: _Answers,
        *,
        interval: float,
        is_newest: bool = True,
    ) -> None: ...
    def due(self) -> float: ...
    def serve(self, time: float, answers: _Answers, *, interval: float) -> None: ...
    def untold_grants(self) -> list[tuple[str, str, str, float]]: ...
    def drop_node(self, node_id: str) -> None: ...
    def resume(self) -> None: ...
    def clear(self) -> None: ...
    def forget_idle(self, time: float) -> None: ...
    def __len__(self) -> int: ...
