"""`BatchTime`: how long a batch will take, learned from those that ran.

A handler takes T = a·n + b for a batch of load n: so much for each item, and so much whatever there
is. Both are fitted by least squares to past batches, each of which weighs a tenth less than the
next, so a model that becomes slower is followed within some twenty batches.

As long as all batches had one size, a and b cannot be told apart. T is then taken to grow in
proportion beyond that size, which errs to the long side, and to stay the same below it. For a load
beyond twice the largest that ran, nothing is known: T of twice the largest is given, so that the
first full batch is not dropped for a guess.
"""

__all__ = ["BatchTime"]

_DECAY = 0.9


class BatchTime:
    """Loads are item counts, or costs where a worker has a cost function. Times are in seconds."""

    def __init__(self) -> None:
        self._weight = 0.0
        self._load = 0.0  # weighted sums
        self._time = 0.0
        self._load_squared = 0.0
        self._load_time = 0.0
        self._largest = 0.0

    @property
    def is_known(self) -> bool:
        return self._weight > 0.0

    def observe(self, load: float, seconds: float) -> None:
        """A batch of this load took so long."""
        self._weight = self._weight * _DECAY + 1.0
        self._load = self._load * _DECAY + load
        self._time = self._time * _DECAY + seconds
        self._load_squared = self._load_squared * _DECAY + load * load
        self._load_time = self._load_time * _DECAY + load * seconds
        self._largest = max(self._largest, load)

    def coefficients(self) -> tuple[float, float]:
        """(a, b), both 0 or more."""
        if not self._weight:
            return 0.0, 0.0
        load, time = self._load / self._weight, self._time / self._weight
        variance = self._load_squared / self._weight - load * load
        if variance <= 1e-3 * load * load:
            return (time / load if load > 0.0 else 0.0), 0.0
        covariance = self._load_time / self._weight - load * time
        a = min(max(covariance / variance, 0.0), time / load)
        return a, time - a * load

    def estimate(self, load: float) -> float:
        """The expected time of a batch; 0 before any ran."""
        if not self._weight:
            return 0.0
        a, b = self.coefficients()
        return a * min(load, 2.0 * self._largest) + b

    def rate(self, load: float) -> float | None:
        """Load per second in batches of `load`, or of the largest that ran; None before any ran."""
        load = min(load, self._largest)
        time = self.estimate(load)
        return load / time if time > 0.0 else None

    def __repr__(self) -> str:
        a, b = self.coefficients()
        return f"BatchTime({a * 1000:.3g} ms each + {b * 1000:.3g} ms)"
