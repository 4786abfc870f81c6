from collections.abc import Callable, Iterable, Mapping
from typing import final

from sluicegate.quota.packed._shares import PackedShares
from sluicegate.quota.packed._report_lines import PackedLines
from sluicegate.quota.ledger._node_table import NodeTable
from sluicegate.quota.ledger._usage import Usage
from sluicegate.quota.messages import Line

__all__ = ["CELL_SIZE", "ServiceLedger"]

CELL_SIZE: int

@final
class ServiceLedger:
    @property
    def cells(self) -> int: ...
    @property
    def first(self) -> int: ...
    @property
    def assigned(self) -> int: ...
    @property
    def nr_slot(self) -> int: ...
    @property
    def slot_seconds(self) -> float: ...
    def __init__(
        self,
        nodes: NodeTable,
        rule: object,
        limit_of: Callable[[str, str], tuple[float, float, int] | None],
        *,
        first: int,
        nr_slot: int = 60,
        slot_seconds: float = 1.0,
    ) -> None: ...
    @staticmethod
    def check(node_id: str, lines: dict[str, dict[str, Line]]) -> None: ...
    @staticmethod
    def check_slot(
        node_id: str,
        consumption: dict[str, dict[str, float]],
        rejection: dict[str, dict[str, float]],
    ) -> None: ...
    def record(
        self,
        node_id: str,
        slot: int,
        lines: dict[str, dict[str, Line]],
        *,
        slots: int = 1,
        sequence: int = 1,
        since: int = 0,
        is_known: bool = False,
        is_new_boot: bool = False,
        is_handed_over: bool = False,
        is_overtaken: bool = False,
        silence: tuple[float, float, float] = (-1.0, -1.0, -1.0),
    ) -> Usage: ...
    def record_packed(
        self,
        node_id: str,
        slot: int,
        lines: PackedLines,
        begin: int,
        end: int,
        *,
        slots: int = 1,
        sequence: int = 1,
        since: int = 0,
        is_known: bool = False,
        is_new_boot: bool = False,
        is_handed_over: bool = False,
        is_overtaken: bool = False,
        silence: tuple[float, float, float] = (-1.0, -1.0, -1.0),
        deducts: bool = False,
    ) -> Usage | None: ...
    def resolve(self, lines: PackedLines, begin: int, end: int, slot: int, most: int) -> int: ...
    def resolve_users(self, users: Iterable[tuple[str, Iterable[str]]], slot: int) -> None: ...
    def record_slot(
        self,
        node_id: str,
        slot: int,
        consumption: dict[str, dict[str, float]],
        rejection: dict[str, dict[str, float]],
    ) -> Usage: ...
    def deduct(self, usage: Usage) -> None: ...
    def assign(self, slot: int) -> None: ...
    def assign_some(self, slot: int, cells: int) -> bool: ...
    def resume(self, slot: int, time: float, *, is_takeover: bool) -> None: ...
    def rebase(self, slot: int) -> None: ...
    def quota(self, slot: int, node_id: str) -> PackedShares: ...
    def tell(
        self,
        slot: int,
        node_id: str,
        user: str,
        resource: str,
        granted: float,
        returned: float,
        used: float,
    ) -> None: ...
    def raise_credit(
        self, slot: int, node_id: str, user: str, resource: str, amount: float, safe: float
    ) -> float: ...
    def limits_changed(self, slot: int, begin: int = 0, most: int = ...) -> int | None: ...
    def dump(self) -> tuple[list[tuple[str, str]], bytes, bytes]: ...
    def load(
        self,
        names: list[tuple[str, str]],
        numbers: bytes,
        cells: bytes,
        nodes: Mapping[int, int],
        *,
        assigned: int,
    ) -> None: ...
    def totals_of(self, slot: int, rejected: bool = False) -> dict[str, dict[str, float]]: ...
    def quotas_of(self, slot: int) -> dict[str, dict[str, dict[str, float]]]: ...
    def distribution(self) -> dict[str, dict[str, dict[str, dict[str, float]]]]: ...
    def level(self, user: str, resource: str, slot: float) -> float | None: ...
    def available(self, user: str, resource: str, slot: float) -> float | None: ...
    def recorded(self, user: str, resource: str) -> float: ...
    def outstanding(self, user: str, resource: str) -> float: ...
    def give_back(self, node_id: str) -> None: ...
    def drop_node(self, node_id: str, *, is_spent: bool = False) -> None: ...
    def __len__(self) -> int: ...
