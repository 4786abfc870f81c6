"""`Timing`: the durations of an election, and what each must be at least.

A leader leads for `lease` (P) seconds of its clock from before its Prepare. Acceptors must exclude
others for at least as long in true time. With clocks that are wrong by `clock_error` (rho) at most,
the leader's P takes up to P / (1 - rho), and an acceptor's A as little as A / (1 + rho):

    A >= P (1 + rho) / (1 - rho)

The same holds for the quarantine of an acceptor that has started and forgotten what it accepted.
"""

from dataclasses import dataclass

from sluicegate._validate import check_between

__all__ = ["Timing"]

_ROUNDING = 1e-9  # of clocks and sums, relative


@dataclass(frozen=True, slots=True)
class Timing:
    """All in seconds of the local clock, but `clock_error`, a fraction."""

    lease: float = 2.0
    """How long a leader leads without a renewal."""
    clock_error: float = 0.01
    """By how much the rate of a member's clock may be wrong, 0.01 is one percent."""
    attempt: float = 0.1
    """How long one attempt may take, from its Prepare to the last vote that it needs.

    Two attempts must end within a quarantine, or two leaderships could have one epoch.
    """

    def __post_init__(self) -> None:
        check_between("lease", self.lease, 0.01, 3600.0)
        check_between("clock_error", self.clock_error, 0.0, 0.2)
        # A quarter of the lease: enough for the epochs, and for two more attempts to renew.
        check_between("attempt", self.attempt, 0.001, self.lease / 4.0)

    @property
    def exclusion(self) -> float:
        """How long an acceptor that has accepted a lease refuses all others."""
        ratio = (1.0 + self.clock_error) / (1.0 - self.clock_error)
        return self.lease * ratio * (1.0 + _ROUNDING)

    @property
    def quarantine(self) -> float:
        """How long an acceptor that has started ignores everything."""
        return self.exclusion

    @property
    def renewal(self) -> float:
        """After how long a leader renews its lease."""
        return self.lease / 3.0
