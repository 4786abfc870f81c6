"""`SyncThread`: calls a function whenever it is due, until it is stopped.

With a clock that is given it looks 50 times a second whether that one has moved: a manual clock
tells nobody.
"""

import logging
import threading
from collections.abc import Callable

__all__ = ["SyncThread"]

_LONGEST_SLEEP = 1.0  # seconds: limiters may be added that are due earlier
_LOOK_EVERY = 0.02

log = logging.getLogger("sluicegate.pacing")


class SyncThread:
    """`sync()` is called when `due()` seconds, 0 or less, are left."""

    def __init__(
        self, sync: Callable[[], object], due: Callable[[], float], *, is_system_clock: bool
    ) -> None:
        self._sync = sync
        self._due = due
        self._longest_sleep = _LONGEST_SLEEP if is_system_clock else _LOOK_EVERY
        self._is_stopping = False
        self._is_woken = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sluicegate-pacing", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """Look again what is due."""
        self._is_woken.set()

    def stop(self, timeout: float) -> bool:
        """End it; whether it has ended in time."""
        self._is_stopping = True
        self._is_woken.set()
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while not self._is_stopping:
            self._is_woken.clear()
            try:
                left = self._due()
                if left <= 0.0:
                    self._sync()
                    left = self._due()
            except Exception:
                log.exception("sync failed, going on")
                left = self._longest_sleep
            if not self._is_stopping:
                self._is_woken.wait(min(max(left, 1e-3), self._longest_sleep))
