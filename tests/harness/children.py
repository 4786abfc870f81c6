"""Processes that a test forks. None outlives it, and none goes on as a second run of pytest."""

import os
import select
import signal
import time
import traceback
from collections.abc import Callable

from tests.harness.waits import PATIENCE

__all__ = ["Children"]


class Children:
    """Forked processes, each running a function of the test."""

    def __init__(self) -> None:
        self.running: list[int] = []

    def start(self, function: Callable[[], object]) -> int:
        child = os.fork()
        if child == 0:
            status = 1
            try:
                function()
                status = 0
            finally:
                if status:
                    traceback.print_exc()
                os._exit(status)
        self.running.append(child)
        return child

    def kill(self, child: int) -> None:
        os.kill(child, signal.SIGKILL)
        assert os.WIFSIGNALED(self._wait_for(child, PATIENCE)), "it had ended by itself"

    def join(self, seconds: float = 120.0) -> None:
        """Wait for all; each must have gone well."""
        end = time.monotonic() + seconds
        while self.running:
            assert self._wait_for(self.running[-1], end - time.monotonic()) == 0

    def end(self) -> None:
        """Of those that a test has left running."""
        while self.running:
            os.kill(self.running[-1], signal.SIGKILL)
            self._wait_for(self.running[-1], PATIENCE)

    def _wait_for(self, child: int, seconds: float) -> int:
        descriptor = os.pidfd_open(child)
        try:
            has_ended, _, _ = select.select([descriptor], [], [], max(0.0, seconds))
        finally:
            os.close(descriptor)
        assert has_ended, f"process {child} goes on after {seconds:g} s"
        self.running.remove(child)
        return os.waitpid(child, 0)[1]
