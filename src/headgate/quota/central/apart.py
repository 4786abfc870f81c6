"""Runs what may never return in a thread that nobody has to wait for.

A source of limits may be a file on a mount that is dead, a database that is locked, a function of
anyone's. The threads of `asyncio.to_thread` are joined when the loop ends, so one that hangs would
hang the stop too; and there are few of them, so some that hang would hold up all the others. These
are daemons, one for each call: the end of the process ends them.
"""

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import TypeVar

__all__ = ["apart"]

_Result = TypeVar("_Result")


def apart(work: Callable[[], _Result]) -> "asyncio.Future[_Result]":
    """What `work` will have returned or raised, for the loop that runs now."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[_Result] = loop.create_future()

    def tell(settle: Callable[[], None]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(lambda: None if future.done() else settle())

    def run() -> None:
        try:
            result = work()
        except Exception as error:  # noqa: BLE001  raised where it is awaited
            failure = error
            tell(lambda: future.set_exception(failure))
        else:
            tell(lambda: future.set_result(result))

    threading.Thread(target=run, name="headgate limits", daemon=True).start()
    return future
