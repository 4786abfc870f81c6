"""What holds for all tests of limits in Redis."""

import pytest

from sluicegate.limits.redis import async_keyed, keyed


@pytest.fixture(autouse=True)
def patient_close(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that pauses for a second must not keep a limiter from giving back its leases."""
    for module in (keyed, async_keyed):
        monkeypatch.setattr(module, "CLOSE_SECONDS", 60 * module.CLOSE_SECONDS)
