"""Several centrals of one process that elect a leader among themselves.

    with CentralGroup(folder) as group:
        leader = group.wait_for_leader()
        group.stop(leader.name)

Each has a loopback address of its own, so that its URL is known before it starts.
"""

import asyncio
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sluicegate.demo.process import random_loopback
from sluicegate.quota import Central
from sluicegate.quota.central.witness import Witness
from tests.harness.central import LIMITS
from tests.harness.waits import PATIENCE, wait_for

__all__ = ["CentralGroup"]


class CentralGroup:
    """Centrals by name; those of `started` run from the beginning."""

    def __init__(
        self,
        folder: Path,
        names: Sequence[str] = ("a", "b", "c"),
        started: Sequence[str] | None = None,
        **options: Any,
    ) -> None:
        self.folder = folder
        self.addresses = {name: f"{random_loopback()}:7411" for name in names}
        self.urls = {name: f"ws://{address}/" for name, address in self.addresses.items()}
        self.running: dict[str, Central] = {}
        self._started = names if started is None else started
        self._options = {"limits": LIMITS, "lease": 1.0, "election": "paxos", **options}

    def make(self, name: str, **changes: Any) -> Central:
        options = self._options | changes
        return Central(
            options.pop("limits"),
            name=name,
            listen=self.addresses[name],
            state=self.folder / f"{name}.state",
            peers=self.urls,
            **options,
        )

    @contextmanager
    def witness(self, name: str, **options: Any) -> Iterator[None]:
        """A witness in the place of a central, in a thread with a loop of its own."""
        witness = Witness(
            name,
            self.urls,
            self.addresses[name],
            self.folder / f"{name}.state",
            lease=self._options["lease"],
            **options,
        )
        loop = asyncio.new_event_loop()
        thread = threading.Thread(target=loop.run_forever, daemon=True)
        thread.start()
        try:
            asyncio.run_coroutine_threadsafe(witness.start(), loop).result(PATIENCE)
            yield
            asyncio.run_coroutine_threadsafe(witness.close(), loop).result(PATIENCE)
            # Its last transports are closed in the turns that follow.
            asyncio.run_coroutine_threadsafe(asyncio.sleep(0.1), loop).result(PATIENCE)
        finally:
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.close()

    def start(self, name: str, **changes: Any) -> Central:
        central = self.make(name, **changes)
        self.running[name] = central.__enter__()
        return central

    def stop(self, name: str) -> None:
        self.running.pop(name).__exit__(None, None, None)

    def __enter__(self) -> "CentralGroup":
        try:
            for name in self._started:
                self.start(name)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        for name in list(self.running):
            self.stop(name)

    def leaders(self) -> list[Central]:
        return [one for one in self.running.values() if one.registry and one.registry.state.leads]

    def wait_for_leader(self, seconds: float = PATIENCE) -> Central:
        """The one that leads, once all others know that."""

        def settled() -> Central | None:
            leaders = self.leaders()
            if len(leaders) != 1:
                return None
            known = {
                one.registry.leadership.leader for one in self.running.values() if one.registry
            }
            return leaders[0] if known == {leaders[0].name} else None

        leader: Central = wait_for(settled, seconds, seen=lambda: self.running)
        return leader
