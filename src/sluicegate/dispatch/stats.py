"""`WorkerStats`: what a worker has done for one queue, as totals that only grow."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence

__all__ = ["Histogram", "WorkerStats"]

_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class Histogram:
    """How many values were at most each bound; the last count is of those above all of them."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    @property
    def count(self) -> int:
        return sum(self.counts)

    def __repr__(self) -> str:
        return f"Histogram(count={self.count}, sum={self.sum:.6g})"


class WorkerStats:
    """`tasks` counts tasks by what became of them.

    They are: `answered` and `failed` by the handler, `late` and `hopeless` (dropped after their
    deadline, and before it for want of time), `cancelled`, `buried` (on the dead list), and, beside
    these, `redelivered` (another worker had them before) and `disowned` (ended here after another
    worker or the client had ended them: not answered again).
    """

    def __init__(self) -> None:
        self.tasks: Counter[str] = Counter()
        self.batch_sizes = Histogram(_SIZES)
        self.wait_seconds = Histogram(_SECONDS)  # from the call to the begin of its batch
        self.run_seconds = Histogram(_SECONDS)  # of batches

    def __repr__(self) -> str:
        return f"WorkerStats({dict(self.tasks)}, batches={self.batch_sizes.count})"
