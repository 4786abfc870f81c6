"""`Reservation`: an expected cost that was charged, and waits for the real one."""

from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

__all__ = ["Reservation"]


class Reservation:
    """What `Keyed.reserve` returns; for `with`, for `async with`, or by hand.

    The first `settle` or `cancel` counts and later ones raise, so that nothing is
    given back twice.
    """

    __slots__ = ("_marks", "_open", "cost", "key")

    def __init__(
        self,
        settle: Callable[[Any, float, Any, float], None],
        key: Any,
        cost: float,
        marks: Any,
    ) -> None:
        self._open = [settle]  # to pop from a list is atomic: one thread gets it
        self._marks = marks
        self.key = key
        self.cost = cost

    @property
    def settled(self) -> bool:
        return not self._open

    def settle(self, cost: float) -> None:
        """Say what it really cost: the rest is given back, or what is missing is charged.

        More than was reserved is charged even when it does not fit: the key then
        waits until it is paid off.
        """
        try:
            settle = self._open.pop()
        except IndexError:
            raise ValueError(f"{self!r} is already settled") from None
        try:
            settle(self.key, self.cost, self._marks, cost)
        except BaseException:
            self._open.append(settle)
            raise
        self.cost = cost

    def cancel(self) -> None:
        """It cost nothing."""
        self.settle(0.0)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is not None and not self.settled:
            self.cancel()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.__exit__(kind, error, traceback)

    def __repr__(self) -> str:
        state = "settled" if self.settled else "open"
        return f"Reservation(key={self.key!r}, cost={self.cost:g}, {state})"
