"""An election whose outcome the test writes, on a clock that the test moves."""

import asyncio

from sluicegate.election.election import Election

__all__ = ["ScriptedElection"]


class ScriptedElection(Election):
    """`win` and `lose` are what the other members have decided; `time` is the boot-time clock."""

    def __init__(self, name: str = "a") -> None:
        self.name = name
        self.time = 100.0
        self._deadline = float("-inf")
        self._epoch = 0
        self._leader: str | None = None
        self._changed = asyncio.Event()

    def win(self, epoch: int, lease: float = 2.0) -> None:
        self._deadline, self._epoch, self._leader = self.time + lease, epoch, self.name
        self._tell()

    def lose(self, leader: str | None, epoch: int) -> None:
        self._deadline, self._epoch, self._leader = float("-inf"), epoch, leader
        self._tell()

    def _tell(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    @property
    def is_leader(self) -> bool:
        return self.time < self._deadline

    @property
    def deadline(self) -> float:
        return self._deadline

    @property
    def epoch(self) -> int:
        return self._epoch

    @property
    def leader(self) -> str | None:
        return self._leader

    async def changed(self) -> None:
        await self._changed.wait()

    async def start(self) -> None:
        pass

    async def close(self) -> None:
        self.lose(None, self._epoch)
