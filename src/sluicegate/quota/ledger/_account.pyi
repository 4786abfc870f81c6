from typing import Self, final

__all__ = ["Account", "max_min"]

def max_min(
    available: list[float], capacities: list[float], waiters: list[tuple[float, list[float]]]
) -> list[float]: ...
@final
class Account:
    user: str
    def __new__(cls, user: str) -> Self: ...
