"""`run_in_daemon_thread`: runs a call that may never return in a thread nobody has to join.

A limits source may be a file on a dead mount, a locked database, or any function of the program.
The threads of `asyncio.to_thread` are joined when the loop ends, so one that hangs would hang the
stop, too; and there are few of them, so some that hang would hold up all the others. These are
daemon threads, one for each call: the end of the process ends them.

The end of a daemon thread needs care. Python freezes it wherever it is, and then flushes stdout and
stderr. If the thread was in a write to one of them it holds the stream's lock for ever, and Python
aborts the process: "could not acquire lock for <stdout> at interpreter shutdown". So at exit, while
all threads still run, those of this module get a second to return or to reach the call in which
they hang. If one is still there after that, the streams are flushed and taken from the interpreter,
which then asks for no lock. A thread that runs from the beginning flushes them, since no thread can
be started at exit and a flush may hang, too: in a pipe that is full and that nobody reads.

What remains: Python aborts as well if it freezes a thread in a write to a file that a global
variable holds, and it flushes stdout before it comes here if the program is a script, so that a
source that hangs in a write to stdout holds up the exit of a script. `os._exit` would avoid both,
but it would skip what the program itself does at exit, and the exit code is not known here.
"""

import asyncio
import atexit
import contextlib
import ctypes
import sys
import threading
import time
from collections.abc import Callable
from typing import TypeVar

__all__ = ["run_in_daemon_thread"]

_Result = TypeVar("_Result")

_NAME = "sluicegate limits"
_EXIT_SECONDS = 1.0  # for all threads together
_FLUSH_SECONDS = 1.0
_STREAMS = ("stderr", "stdout", "__stderr__", "__stdout__")


def run_in_daemon_thread(work: Callable[[], _Result]) -> "asyncio.Future[_Result]":
    """Call `work` in a daemon thread; its result or error goes to the running loop."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[_Result] = loop.create_future()

    def complete(resolve: Callable[[], None]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody awaits it any more
            loop.call_soon_threadsafe(lambda: None if future.done() else resolve())

    def run() -> None:
        try:
            result = work()
        except Exception as error:  # noqa: BLE001  raised where it is awaited
            failure = error
            complete(lambda: future.set_exception(failure))
        else:
            complete(lambda: future.set_result(result))

    _exit.prepare()
    threading.Thread(target=run, name=_NAME, daemon=True).start()
    return future


class _Exit:
    """What happens to the threads of this module when the program exits."""

    def __init__(self) -> None:
        self._flusher: threading.Thread | None = None
        self._begins = threading.Event()

    def prepare(self) -> None:
        if self._flusher is None or not self._flusher.is_alive():  # or this is a forked child
            self._flusher = threading.Thread(
                target=self._flush, name="sluicegate exit", daemon=True
            )
            self._flusher.start()

    def _flush(self) -> None:
        self._begins.wait()
        for name in _STREAMS:
            with contextlib.suppress(Exception):
                getattr(sys, name).flush()

    def run(self) -> None:
        end = time.monotonic() + _EXIT_SECONDS
        running = [thread for thread in threading.enumerate() if thread.name == _NAME]
        for thread in running:
            thread.join(max(0.0, end - time.monotonic()))
        if self._flusher is not None and any(thread.is_alive() for thread in running):
            self._begins.set()
            self._flusher.join(_FLUSH_SECONDS)
            _detach_streams()


def _detach_streams() -> None:
    """Leave no stdout and no stderr for the interpreter to flush or to close."""
    for name in _STREAMS:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(getattr(sys, name)))
        setattr(sys, name, None)


_exit = _Exit()
atexit.register(_exit.run)
