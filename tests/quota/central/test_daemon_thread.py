"""What becomes of calls that never return when the program exits."""

import asyncio
import io
import sys
import threading
from collections.abc import Callable

import pytest

import sluicegate.quota.central.daemon_thread as daemon_thread
from sluicegate.quota.central.daemon_thread import run_in_daemon_thread
from tests.harness.waits import PATIENCE

STREAMS = ("stdout", "stderr", "__stdout__", "__stderr__")


class Stream(io.StringIO):
    """Notes whether it was flushed, which may take as long as `flushing` does."""

    def __init__(self, flushing: Callable[[], object]) -> None:
        super().__init__()
        self.is_flushed = False
        self._flushing = flushing

    def flush(self) -> None:
        self._flushing()
        self.is_flushed = True


def leave(
    work: Callable[[], object],
    *,
    exit_seconds: float = PATIENCE,
    flush_seconds: float = PATIENCE,
    flushing: Callable[[], object] = lambda: None,
) -> tuple[list[Stream], list[object]]:
    """Call `work` apart, and then do what is done at exit.

    The streams that there were, and what is in their places afterwards.
    """
    streams = [Stream(flushing) for _ in STREAMS]

    async def begin() -> None:
        run_in_daemon_thread(work)

    with pytest.MonkeyPatch.context() as patch:
        exit_ = daemon_thread._Exit()
        patch.setattr(daemon_thread, "_exit", exit_)
        patch.setattr(daemon_thread, "_NAME", "a thread of this test")
        patch.setattr(daemon_thread, "_EXIT_SECONDS", exit_seconds)
        patch.setattr(daemon_thread, "_FLUSH_SECONDS", flush_seconds)
        for name, stream in zip(STREAMS, streams, strict=True):
            patch.setattr(sys, name, stream)
        asyncio.run(begin())
        exit_.run()
        left = [getattr(sys, name) for name in STREAMS]
    exit_._begins.set()
    return streams, left


def test_at_exit_a_call_has_time_to_return() -> None:
    returned = threading.Event()

    def work() -> None:
        threading.Event().wait(0.2)  # the exit begins meanwhile, or a little later
        returned.set()

    streams, left = leave(work)
    assert returned.is_set()
    assert left == streams
    assert not any(stream.is_flushed for stream in streams)


def test_at_exit_a_call_that_hangs_leaves_no_stream_to_the_interpreter() -> None:
    hold = threading.Event()
    streams, left = leave(lambda: hold.wait(PATIENCE), exit_seconds=0.01)
    hold.set()
    assert left == [None] * 4
    assert all(stream.is_flushed for stream in streams)


def test_at_exit_a_flush_that_hangs_is_not_waited_for() -> None:
    hold = threading.Event()
    gave_up = threading.Event()

    def hang() -> None:
        if not hold.wait(PATIENCE):
            gave_up.set()

    streams, left = leave(hang, exit_seconds=0.01, flush_seconds=0.01, flushing=hang)
    assert not gave_up.is_set()
    assert left == [None] * 4
    assert not any(stream.is_flushed for stream in streams)
    hold.set()
