"""How late a busy machine makes a process: what a bound on real time has to allow for."""

import threading
import time
from types import TracebackType

__all__ = ["Lateness"]

_STEP = 0.002  # seconds
_PAUSE = 0.01  # a shorter delay is the scheduler's everyday work, and adds nothing to a long wait


class Lateness:
    """A thread that sleeps in short steps and notes when it wakes up.

    What stops the process, or keeps it from running, makes this thread as late as all others.
    """

    def __init__(self) -> None:
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._measure)
        self._woken: list[float] = []

    def between(self, begin: float, end: float) -> float:
        """Seconds of this time (of `time.monotonic()`) in which the process could not run."""
        while self._woken[-1] < end:  # the step in which it ended counts, too
            time.sleep(_STEP)
        steps = zip(self._woken, self._woken[1:], strict=False)
        asleep = [to - since for since, to in steps if to > begin and since < end]
        return sum(seconds - _STEP for seconds in asleep if seconds > _PAUSE)

    def __enter__(self) -> "Lateness":
        self._woken.append(time.monotonic())
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._done.set()
        self._thread.join()

    def _measure(self) -> None:
        while not self._done.is_set():
            time.sleep(_STEP)
            self._woken.append(time.monotonic())
