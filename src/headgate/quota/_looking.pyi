from collections.abc import Sequence

from headgate.quota._book import Book

__all__ = ["busiest", "count_overshoots", "size", "used"]

def size(book: Book) -> int: ...
def count_overshoots(
    book: Book, slot: int, edges: Sequence[float], start: int, most: int
) -> list[int]: ...
def busiest(book: Book, slot: int, slots: int, most: int) -> list[tuple[float, str]]: ...
def used(
    book: Book, user: str, slot: int, slots: int
) -> dict[str, tuple[float, float, float, float]]: ...
