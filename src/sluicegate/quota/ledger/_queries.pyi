from collections.abc import Sequence

from sluicegate.quota.ledger._service_ledger import ServiceLedger

__all__ = [
    "busiest_users",
    "count_overshoots",
    "distribution_of",
    "read_quota",
    "nodes_with_quota",
    "bucket_count",
    "slot_totals",
    "usage_of",
    "list_users",
]

def bucket_count(service_ledger: ServiceLedger) -> int: ...
def count_overshoots(
    service_ledger: ServiceLedger, slot: int, edges: Sequence[float], start: int, most: int
) -> list[int]: ...
def busiest_users(service_ledger: ServiceLedger, slot: int, slots: int, most: int) -> list[tuple[float, str]]: ...
def usage_of(
    service_ledger: ServiceLedger, user: str, slot: int, slots: int
) -> dict[str, tuple[float, float, float, float]]: ...
def list_users(service_ledger: ServiceLedger, slot: int | None) -> list[str]: ...
def slot_totals(
    service_ledger: ServiceLedger, slot: int, users: list[str], rejected: bool
) -> dict[str, dict[str, float]]: ...
def distribution_of(
    service_ledger: ServiceLedger, users: list[str], start: int, stop: int
) -> dict[str, dict[str, dict[str, dict[str, float]]]]: ...
def nodes_with_quota(service_ledger: ServiceLedger, slot: int) -> list[str]: ...
def read_quota(
    service_ledger: ServiceLedger, slot: int, node: str, users: dict[str, dict[str, float]], at: int, most: int
) -> int | None: ...
