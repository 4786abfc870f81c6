"""`Server`: a Redis with one queue in it, and the network to it.

An exchange takes a random time each way. It may be lost on either way, so that the caller does not
know whether it was carried out, and it may be carried out twice, as when a connection breaks and
the command is sent again. Nothing keeps exchanges in order, which is worse than one connection is.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sluicegate.errors import Unavailable
from sluicegate.sim.dispatch.process import Process
from sluicegate.sim.dispatch.queue_model import QueueModel
from sluicegate.sim.world import World

__all__ = ["Network", "Server"]

_EPOCH = 1_000.0  # what the clock of Redis says when the simulation begins
_TIMEOUT = 2.0  # seconds after which a caller takes an exchange for lost
BLOCK = 2.0  # seconds for which a read waits in Redis


@dataclass(frozen=True, slots=True)
class Network:
    """`delay`: most seconds one way. `loss`, `repeat`: parts of the exchanges."""

    delay: float = 0.001
    loss: float = 0.0
    repeat: float = 0.0


@dataclass(slots=True)
class _Read:
    process: Process
    look: Callable[[], Any]
    done: Callable[[Any], object]
    failed: Callable[[Unavailable], object]
    is_open: bool = True


class Server:
    def __init__(self, world: World, network: Network) -> None:
        self.world = world
        self.network = network
        self.model = QueueModel()
        self.exchanges = 0
        self._blocked: list[_Read] = []
        self._down_until = 0.0

    @property
    def now(self) -> float:
        """The time of Redis."""
        return _EPOCH + self.world.now

    def exchange(
        self,
        process: Process,
        act: Callable[[], Any],
        done: Callable[[Any], object],
        failed: Callable[[Unavailable], object],
        *,
        may_repeat: bool = True,
    ) -> None:
        """Carry out `act` in Redis and give its result to `done`."""
        random = self.world.network
        if self._is_lost():
            self._fail(process, failed)
            return
        if may_repeat and random.random() < self.network.repeat:
            self.world.at(self.world.now + self._delay(), self._carry_out, act)
        self.world.at(
            self.world.now + self._delay(), self._carry_out_for, process, act, done, failed
        )

    def read(
        self,
        process: Process,
        look: Callable[[], Any],
        done: Callable[[Any], object],
        failed: Callable[[Unavailable], object],
    ) -> None:
        """What `look` finds goes to `done`; nothing, if it waits for `BLOCK` seconds in vain."""
        if self._is_lost():
            self._fail(process, failed)
            return
        read = _Read(process, look, done, failed)
        self.world.at(self.world.now + self._delay(), self._block, read)

    def go_down(self, seconds: float) -> None:
        """Answer nobody for a while, and close all connections."""
        self._down_until = self.world.now + seconds
        for read in self._blocked:
            self._close(read)
        self._blocked = []

    def _block(self, read: _Read) -> None:
        if self.world.now < self._down_until:
            self._fail(read.process, read.failed)
            return
        self._blocked.append(read)
        self._serve()
        if read.is_open:
            self.world.at(self.world.now + BLOCK, self._end_block, read)

    def _end_block(self, read: _Read) -> None:
        if read.is_open:
            read.is_open = False
            self._blocked.remove(read)
            self._reply(read.process, read.done, None)

    def _close(self, read: _Read) -> None:
        read.is_open = False
        self._fail(read.process, read.failed)

    def _serve(self) -> None:
        """Answer the reads for which there is something now, in the order of their arrival."""
        answered = False
        for read in self._blocked:
            if read.process.is_dead:
                read.is_open = False
                answered = True
            elif found := read.look():
                read.is_open = False
                answered = True
                if self._is_lost():
                    self._fail(read.process, read.failed)
                else:
                    self._reply(read.process, read.done, found)
        if answered:
            self._blocked = [read for read in self._blocked if read.is_open]

    def _carry_out_for(
        self,
        process: Process,
        act: Callable[[], Any],
        done: Callable[[Any], object],
        failed: Callable[[Unavailable], object],
    ) -> None:
        if self.world.now < self._down_until:
            self._fail(process, failed)
            return
        result = self._carry_out(act)
        if self._is_lost():
            self._fail(process, failed)
        else:
            self._reply(process, done, result)

    def _carry_out(self, act: Callable[[], Any]) -> Any:
        self.exchanges += 1
        result = act()
        self._serve()
        return result

    def _reply(self, process: Process, done: Callable[[Any], object], result: Any) -> None:
        self.world.at(self.world.now + self._delay(), process.run, done, result)

    def _fail(self, process: Process, failed: Callable[[Unavailable], object]) -> None:
        """After a reset that is noticed at once, or after the time-out."""
        process.faulted_at = self.world.now
        delay = self._delay() if self.world.network.random() < 0.7 else _TIMEOUT
        self.world.at(self.world.now + delay, process.run, self._note_failure, process, failed)

    def _note_failure(self, process: Process, failed: Callable[[Unavailable], object]) -> None:
        process.faulted_at = self.world.now
        failed(Unavailable("Redis did not answer"))

    def _is_lost(self) -> bool:
        return self.network.loss > 0.0 and self.world.network.random() < self.network.loss

    def _delay(self) -> float:
        return self.network.delay * self.world.network.random()

    def __repr__(self) -> str:
        return f"Server({self.model!r}, exchanges={self.exchanges})"
