"""`RateLimited`: the exception that carries a denial."""

from sluicegate.errors import SluicegateError
from sluicegate.limits._decision import Decision

__all__ = ["RateLimited"]


class RateLimited(SluicegateError):
    """The limiter said no, at once or after the time-out. Nothing was charged."""

    def __init__(self, decision: Decision) -> None:
        which = "the limit" if decision.limit is None else str(decision.limit)
        when = f", try again in {decision.retry_after:.3g} s" if decision.retry_after > 0 else ""
        left = round(decision.remaining, 3)  # less is the drip since the last call
        super().__init__(f"rate limited by {which}: {left:g} left{when}")
        self.decision = decision

    def __reduce__(self) -> tuple[type["RateLimited"], tuple[Decision]]:
        return type(self), (self.decision,)

    @property
    def retry_after(self) -> float:
        """Seconds until the same call could succeed; 0 where nobody can tell."""
        return self.decision.retry_after
