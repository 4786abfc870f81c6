"""`SWARMS`: random runs of dispatch, by the hundred."""

from sluicegate.sim.dispatch.swarm import run
from sluicegate.sim.swarm_runs import Swarms

__all__ = ["SWARMS"]

SWARMS = Swarms(
    "dispatch-random",
    "random swarms of dispatch",
    run,
    (
        *("sent", "enqueued", "delivered", "begun", "answered", "batches", "exchanges"),
        *("TimedOut", "Busy", "NoWorkers", "Duplicate", "HandlerFailed", "Unavailable"),
        *("cancelled", "told", "given up", "redelivered", "begun again", "clients killed"),
        *("killed", "frozen", "stopped", "recovered"),
    ),
    "every call ended once and in time; nothing was answered twice or left behind",
)
