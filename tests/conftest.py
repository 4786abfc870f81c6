"""Set-up for all tests: how many examples the property tests try, and a clock in the hand."""

import os

import pytest
from hypothesis import HealthCheck, settings

from headgate import ManualClock

settings.register_profile("default", max_examples=150, deadline=None)
settings.register_profile(
    "soak",
    max_examples=5_000,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()
