"""Dispatch in virtual time: the real state machines, and a model of Redis, network and handlers.

    outcome = run(17)
    outcome.violations, outcome.counts

Clients and workers are the real `ClientCore` and `WorkerCore`; the queue is a `QueueModel`. The
same seed gives the same run.
"""

from sluicegate.sim.dispatch.swarm import run

__all__ = ["run"]
