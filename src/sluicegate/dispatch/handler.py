"""Runs a handler on a batch, whatever kind of function it is.

A handler takes a list of items and returns a list of as many results, in their order; a result that
is an exception fails its own item. With `per_item` it takes one item and returns one result. It is
sync, and runs in a thread or a process, or async.

Whatever a handler raises fails its items, so that their callers hear of it: also a `CancelledError`
of something that it awaited, and a `SystemExit`. Only where the batch itself is cancelled is that
passed on.
"""

import asyncio
import inspect
import pickle
import traceback
from collections.abc import Callable, Sequence, Set
from typing import Any

from sluicegate.dispatch.wire import FAILED, OK
from sluicegate.errors import describe

__all__ = ["Handler", "Outcome"]

# A status and the data of a response. That of a failure has its traceback as `trace`, for the log.
Outcome = tuple[int, Any]

_MOST_ERROR = 10_000  # characters of an error's text, and of its traceback
_MOST_TRACE = 100_000


class Handler:
    """A handler and how to call it. Can be pickled if the function can."""

    def __init__(
        self,
        function: Callable[[Any], Any],
        *,
        per_item: bool = False,
        isolate: bool = False,
        tracebacks: bool = False,
    ) -> None:
        if not callable(function):
            raise TypeError(f"handler must be callable, got {function!r}")
        self.function = function
        self.per_item = per_item
        self.isolate = isolate
        self.tracebacks = tracebacks
        call = type(function).__call__  # of an object with an async `__call__`
        self.is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)

    def run(self, items: Sequence[Any]) -> list[Outcome]:
        """Run a sync handler."""
        if self.per_item:
            return [self._run_item(item) for item in items]
        try:
            return self._check(self.function(list(items)), items)
        except BaseException as error:  # noqa: BLE001  the caller of the request must hear of it
            if self.isolate and len(items) > 1:
                return [self.run([item])[0] for item in items]
            return [self._failure(error)] * len(items)

    def run_in_process(self, items: Sequence[Any]) -> list[bytes]:
        """`run`, with each outcome pickled for itself: one that cannot be fails alone."""
        return [self._pickle(outcome) for outcome in self.run(items)]

    def load(self, pickled: bytes) -> Outcome:
        """An outcome of `run_in_process`, in the worker's own process."""
        try:
            outcome: Outcome = pickle.loads(pickled)
        except Exception as error:  # noqa: BLE001  an object may fail in its own way
            return self._failure(TypeError(f"the result cannot be unpickled: {describe(error)}"))
        return outcome

    def _pickle(self, outcome: Outcome) -> bytes:
        try:
            return pickle.dumps(outcome)
        except Exception as error:  # noqa: BLE001  as above
            failure = TypeError(f"the result cannot be pickled: {describe(error)}")
            return pickle.dumps(self._failure(failure))

    async def run_async(self, items: Sequence[Any]) -> list[Outcome]:
        """Run an async handler."""
        if self.per_item:
            return list(await asyncio.gather(*(self._run_item_async(item) for item in items)))
        try:
            return self._check(await self.function(list(items)), items)
        except (Exception, SystemExit, asyncio.CancelledError) as error:
            if _is_being_cancelled():
                raise
            if self.isolate and len(items) > 1:
                return [(await self.run_async([item]))[0] for item in items]
            return [self._failure(error)] * len(items)

    def _run_item(self, item: Any) -> Outcome:
        try:
            return self._outcome(self.function(item))
        except BaseException as error:  # noqa: BLE001  as above
            return self._failure(error)

    async def _run_item_async(self, item: Any) -> Outcome:
        try:
            return self._outcome(await self.function(item))
        except (Exception, SystemExit, asyncio.CancelledError) as error:
            if _is_being_cancelled():
                raise
            return self._failure(error)

    def _check(self, results: Any, items: Sequence[Any]) -> list[Outcome]:
        has_order = not isinstance(results, str | bytes | dict | Set)
        if not has_order or not hasattr(results, "__len__"):
            raise TypeError(
                f"a handler must return a list of {len(items)} results, "
                f"got {type(results).__name__}"
            )
        if len(results) != len(items):
            raise ValueError(
                f"a handler must return one result for each item: "
                f"got {len(results)} results for {len(items)} items"
            )
        return [self._outcome(result) for result in results]

    def _outcome(self, result: Any) -> Outcome:
        return self._failure(result) if isinstance(result, Exception) else (OK, result)

    def _failure(self, error: BaseException) -> Outcome:
        trace = "".join(traceback.format_exception(error))[-_MOST_TRACE:]
        trace = trace.encode(errors="replace").decode()
        data = {"error": describe(error)[:_MOST_ERROR], "trace": trace}
        if self.tracebacks:
            data["traceback"] = trace
        return FAILED, data

    def __repr__(self) -> str:
        return f"Handler({getattr(self.function, '__qualname__', self.function)})"


def _is_being_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
