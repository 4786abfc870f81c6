"""As much time for the exchanges of dispatch with Redis as a busy machine needs."""

import pytest

from sluicegate import Dispatcher, Worker
from sluicegate.dispatch.queue_admin import QueueAdmin
from sluicegate.redis_client import topology
from tests.harness.waits import PATIENCE

__all__ = ["patient_dispatch"]


@pytest.fixture(autouse=True)
def patient_dispatch(monkeypatch: pytest.MonkeyPatch) -> None:
    """An exchange has the time of a test, unless the test itself says how long.

    The default of 2 s is for users. On a machine with other work Redis may answer later than that,
    which is no fault of what is tested.
    """
    for part in (Dispatcher, Worker, QueueAdmin):
        defaults = part.__init__.__kwdefaults__
        assert "timeout" in defaults
        monkeypatch.setitem(defaults, "timeout", PATIENCE)
    monkeypatch.setattr(topology, "DISCOVERY_SECONDS", PATIENCE)
