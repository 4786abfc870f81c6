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

    __slots__ = ("_settle", "_since", "cost", "key", "settled")

    def __init__(
        self,
        settle: Callable[[Any, float, float, float], None],
        key: Any,
        cost: float,
        since: float,
    ) -> None:
        self._settle = settle
        self._since = since
        self.key = key
        self.cost = cost
        self.settled = False

    def settle(self, cost: float) -> None:
        """Say what it really cost: the rest is given back, or what is missing is charged.

        More than was reserved is charged even when it does not fit: the key then
        waits until it is paid off.
        """
        if self.settled:
            raise ValueError(f"{self!r} was settled already")
        self._settle(self.key, self.cost, self._since, cost)
        self.settled = True
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
