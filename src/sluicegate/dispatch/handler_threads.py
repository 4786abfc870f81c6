"""`HandlerThreads`: the threads that handlers run in.

Unlike those of `ThreadPoolExecutor` they do not hold up the end of the program: a worker that was
told to stop within a time does so, though a handler hangs.
"""

import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from queue import SimpleQueue
from typing import Any, ParamSpec, TypeVar

__all__ = ["HandlerThreads"]

_P = ParamSpec("_P")
_T = TypeVar("_T")
_Job = tuple["Future[Any]", Callable[[], Any]]


class HandlerThreads(Executor):
    """`count` daemon threads."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        try:
            for number in range(count):
                threading.Thread(
                    target=_work,
                    args=(self._jobs,),
                    name=f"sluicegate-handler-{number}",
                    daemon=True,
                ).start()
        except BaseException:  # too many for the system: those that were started end
            self.shutdown()
            raise

    def submit(self, fn: Callable[_P, _T], /, *args: _P.args, **kwargs: _P.kwargs) -> "Future[_T]":
        future: Future[_T] = Future()
        self._jobs.put((future, lambda: fn(*args, **kwargs)))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End the threads that are idle, and the others after what they run. Waits for none."""
        for _ in range(self._count):
            self._jobs.put(None)


def _work(jobs: "SimpleQueue[_Job | None]") -> None:
    while (job := jobs.get()) is not None:
        future, call = job
        if not future.set_running_or_notify_cancel():
            continue
        try:
            result = call()
        except BaseException as error:  # noqa: BLE001  raised where the future is awaited
            future.set_exception(error)
        else:
            future.set_result(result)
        del job, future, call  # not kept while the thread is idle
