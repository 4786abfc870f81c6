"""The nodes of `sluicegate demo pacing`: processes over a Redis of their own, or threads.

Where there is no Redis (`embedded_redis.py`), the nodes are threads over one `MemoryStore`; a
thread is "killed" by taking the store away from it, so that it cannot tell its last counts.
"""

import logging
import os
import shutil
import threading
import time
from collections.abc import Callable

from sluicegate.demo.embedded_redis import EmbeddedRedis, find_redis
from sluicegate.demo.fleet import StartCancelled
from sluicegate.demo.pacing_node import NodePlan, NodeRecord, NodeStatus, run_node
from sluicegate.demo.process import Process, make_folder, python_module, stop
from sluicegate.demo.traffic import next_second, write_begin
from sluicegate.errors import Unavailable
from sluicegate.stores import MemoryStore
from sluicegate.stores.store import SyncReply, SyncRequest

__all__ = ["NODES", "PacingFleet"]

NODES = 4
_START_TIMEOUT = 60.0
_STOP_TIMEOUT = 5.0
_LOOK_EVERY = 0.02


class _NodeProcess:
    """A node that is a process."""

    def __init__(self, plan: NodePlan) -> None:
        self.record = NodeRecord(plan.folder / f"{plan.name}.record")
        command = python_module("sluicegate.demo.pacing_node", plan.encode())
        self.process = Process(plan.folder, plan.name, command)

    def start(self) -> None:
        self.process.start()

    @property
    def is_alive(self) -> bool:
        return self.process.pid is not None

    def kill(self) -> None:
        self.process.kill()

    def last_output(self) -> str:
        return self.process.last_output()


class _NodeThread:
    """A node that is a thread of this process."""

    def __init__(self, plan: NodePlan, store: MemoryStore) -> None:
        self.record = NodeRecord(plan.folder / f"{plan.name}.record")
        self._plan = plan
        self._shared = store
        self._store = _LosableStore(store)
        self._is_stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        self._store = _LosableStore(self._shared)
        self._is_stopping = threading.Event()
        arguments = (self._plan, self.record, self._store, self._is_stopping.is_set)
        self._thread = threading.Thread(target=run_node, args=arguments, daemon=True)
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def kill(self) -> None:
        self._store.is_lost = True
        self._is_stopping.set()
        self._thread = None  # it tries in vain for some seconds to tell its last counts

    def stop(self) -> None:
        self._is_stopping.set()
        if self._thread is not None:
            self._thread.join(_STOP_TIMEOUT)

    def last_output(self) -> str:
        return ""


class _LosableStore:
    """The store of a thread that can be killed."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        self.is_lost = False

    def sync(self, request: SyncRequest) -> SyncReply:
        if self.is_lost:
            raise Unavailable("the node was killed")
        return self._store.sync(request)

    def close(self) -> None:
        pass


FleetNode = _NodeProcess | _NodeThread


class PacingFleet:
    """All nodes and their store. `is_stopping` is called while it waits for them to start."""

    def __init__(
        self,
        seconds: int,
        target: int,
        requests: float,
        moved_at: float,
        is_stopping: Callable[[], bool],
        *,
        in_memory: bool = False,
    ) -> None:
        self.folder = make_folder(f"sluicegate-demo-{os.getpid()}-")
        self.begin = 0.0  # monotonic time of the first request
        self._is_stopping = is_stopping
        program = None if in_memory else find_redis()
        self._redis = None if program is None else EmbeddedRedis(program, self.folder)
        store = MemoryStore()
        self.nodes: list[FleetNode] = []
        for place in range(NODES):
            plan = NodePlan(
                folder=self.folder,
                name=f"node-{place + 1}",
                place=place,
                nodes=NODES,
                seconds=seconds,
                target=target,
                requests=requests,
                moved_at=moved_at,
                url="" if self._redis is None else self._redis.url,
            )
            node = _NodeProcess(plan) if self._redis else _NodeThread(plan, store)
            self.nodes.append(node)

    @property
    def is_on_redis(self) -> bool:
        return self._redis is not None

    def open(self) -> None:
        """Start all of it, and the traffic with a whole second; raises StartCancelled."""
        if self._redis is not None:
            self._redis.start()
            self._wait(self._redis.answers)
        else:
            logging.getLogger("sluicegate.pacing").addHandler(logging.NullHandler())
        for node in self.nodes:
            node.start()
        self._wait(lambda: all(node.record.status().pid for node in self.nodes))
        self.begin = next_second()
        write_begin(self.folder, self.begin)

    def statuses(self) -> list[NodeStatus | None]:
        """Of each node; None for one that does not run."""
        return [node.record.status() if node.is_alive else None for node in self.nodes]

    def close(self) -> None:
        """End all of it: the nodes first, which sync a last time."""
        try:
            stop(
                [one.process for one in self.nodes if isinstance(one, _NodeProcess)], _STOP_TIMEOUT
            )
            for node in self.nodes:
                if isinstance(node, _NodeThread):
                    node.stop()
        finally:
            if self._redis is not None:
                self._redis.close()
            for node in self.nodes:
                if not node.is_alive:
                    node.record.close()
            shutil.rmtree(self.folder)

    def _wait(self, is_ready: Callable[[], bool]) -> None:
        """Until it is ready; Unavailable if a process ends, or if it takes too long."""
        deadline = time.monotonic() + _START_TIMEOUT
        while not is_ready():
            if self._is_stopping():
                raise StartCancelled("stopped while the nodes were starting")
            for node in self.nodes:
                if isinstance(node, _NodeProcess) and node.process.popen and not node.is_alive:
                    raise Unavailable(f"a node did not start; its log: {node.last_output()}")
            if time.monotonic() > deadline:
                raise Unavailable(f"the nodes did not start within {_START_TIMEOUT:g} s")
            time.sleep(_LOOK_EVERY)
