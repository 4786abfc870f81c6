"""A queue in front of servers: idle workers pull, small requests become batches, deadlines hold."""

from typing import TYPE_CHECKING

from sluicegate._lazy import lazy_exports

if TYPE_CHECKING:
    from sluicegate.dispatch.client import Dispatcher
    from sluicegate.dispatch.errors import Busy, Duplicate, HandlerFailed, NoWorkers, TimedOut
    from sluicegate.dispatch.sync_client import SyncDispatcher
    from sluicegate.dispatch.worker import Worker

__all__ = [
    "Busy",
    "Dispatcher",
    "Duplicate",
    "HandlerFailed",
    "NoWorkers",
    "SyncDispatcher",
    "TimedOut",
    "Worker",
]

__getattr__ = lazy_exports(
    globals(),
    {
        "sluicegate.dispatch.client": ["Dispatcher"],
        "sluicegate.dispatch.errors": [
            "Busy",
            "Duplicate",
            "HandlerFailed",
            "NoWorkers",
            "TimedOut",
        ],
        "sluicegate.dispatch.sync_client": ["SyncDispatcher"],
        "sluicegate.dispatch.worker": ["Worker"],
    },
)
