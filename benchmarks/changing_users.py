"""An hour of users who come and go, in virtual time: does a central's memory stay as it is?

Three nodes report 200 users in each slot, of whom twenty are new and twenty have gone: 72,000 in
an hour of slots. Reports and quotas go over the binary wire, as they would in a connection that
lasts as long. It runs in a process of its own, and that process's memory is what is measured.

    python -m benchmarks.changing_users    prints the bytes after ten minutes and after an hour
"""

import gc
import os
import subprocess
import sys

from benchmarks.harness import Row
from sluicegate.quota import Entry, Ledger
from sluicegate.quota.messages import Ask, Line, Quota, Report
from sluicegate.quota.wire import CentralWire, NodeWire

__all__ = ["row"]

_NODES = ("node-1", "node-2", "node-3")
_USERS = 200
_NEW = 20  # users in each slot
_START = 1_800_000_000
_TEN_MINUTES, _HOUR = 600, 3600  # slots


class _Connection:
    """One node, and both ends of its connection."""

    def __init__(self, node: str, ledger: Ledger) -> None:
        self._node = node
        self._ledger = ledger
        self._ours = CentralWire()
        self._theirs = NodeWire()

    def report(self, slot: int) -> None:
        users = {}
        for place in range(_USERS):
            requests = (_USERS - place) // _NEW  # one in each slot since he came
            line = Line(float(requests), 0, requests, max(0.0, requests - 1.0), 0.0)
            users[f"user:{slot * _NEW + place}"] = {"requests": line}
        told = Report(self._node, 1, slot, 1, slot - 1, _START + slot - 1, 0.0, {"front": users})
        heard = self._ours.read(self._theirs.write(told))
        assert not isinstance(heard, Ask)
        self._ledger.book(_START + slot, heard)

    def tell(self, slot: int) -> None:
        services = self._ledger.quota(_START + slot, self._node)
        next_slot = _START + slot + 1
        version = self._ledger.version
        quota = Quota("central", 1, version, next_slot, 0.5, 3, True, 0.05, services)
        self._theirs.read(self._ours.write(quota))


def _run() -> tuple[int, int]:
    ledger = Ledger([Entry("front", "*", rates={"requests": 100.0})])
    connections = [_Connection(node, ledger) for node in _NODES]
    early = 0
    for slot in range(1, _HOUR + 1):
        for connection in connections:
            connection.report(slot)
        ledger.assign(_START + slot)
        for connection in connections:
            connection.tell(slot)
        if slot == _TEN_MINUTES:
            early = _resident_bytes()
    return early, _resident_bytes()


def _resident_bytes() -> int:
    gc.collect()
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def row() -> Row:
    command = [sys.executable, "-m", "benchmarks.changing_users"]
    told = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    early, late = map(int, told.split())
    seen = _NEW * _HOUR
    return Row(
        f"memory of a process after an hour of changing users ({seen:,}), beside ten minutes",
        f"{late / 1e6:.1f} MB",
        f"{early / 1e6:.1f} MB (ten minutes)",
        late / early,
        f"{late / early:.3f} x",
        "<= 1.05 x",
        late <= 1.05 * early,
    )


if __name__ == "__main__":
    print(*_run())
