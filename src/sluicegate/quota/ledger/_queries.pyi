from collections.abc import Sequence

from sluicegate.quota.ledger._service_ledger import Book

__all__ = [
    "busiest",
    "count_overshoots",
    "distribution_of",
    "given_to",
    "nodes_given",
    "size",
    "sums_of",
    "used",
    "users_of",
]

def size(book: Book) -> int: ...
def count_overshoots(
    book: Book, slot: int, edges: Sequence[float], start: int, most: int
) -> list[int]: ...
def busiest(book: Book, slot: int, slots: int, most: int) -> list[tuple[float, str]]: ...
def used(
    book: Book, user: str, slot: int, slots: int
) -> dict[str, tuple[float, float, float, float]]: ...
def users_of(book: Book, slot: int | None) -> list[str]: ...
def sums_of(
    book: Book, slot: int, users: list[str], rejected: bool
) -> dict[str, dict[str, float]]: ...
def distribution_of(
    book: Book, users: list[str], start: int, stop: int
) -> dict[str, dict[str, dict[str, dict[str, float]]]]: ...
def nodes_given(book: Book, slot: int) -> list[str]: ...
def given_to(
    book: Book, slot: int, node: str, users: dict[str, dict[str, float]], at: int, most: int
) -> int | None: ...
