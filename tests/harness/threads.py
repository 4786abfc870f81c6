"""Threads of a test: started together, and waited for with a deadline."""

import sys
import threading
import time
from collections.abc import Callable, Iterable

from tests.harness.waits import PATIENCE

__all__ = ["run_in_threads", "start_thread"]


def start_thread(work: Callable[[], object]) -> threading.Thread:
    """A daemon: one that hangs fails its test, and does not hold up the end of the run."""
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def run_in_threads(works: Iterable[Callable[[], object]], seconds: float = PATIENCE) -> None:
    """Run each in a thread of its own, and wait until all have ended.

    Python switches between them as often as it can, so that races show.
    """
    end = time.monotonic() + seconds
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [start_thread(work) for work in works]
        for thread in threads:
            thread.join(max(0.0, end - time.monotonic()))
    finally:
        sys.setswitchinterval(interval)
    running = sum(thread.is_alive() for thread in threads)
    assert not running, f"{running} of {len(threads)} threads go on after {seconds:g} s"
