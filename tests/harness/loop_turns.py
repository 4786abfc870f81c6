"""How long a turn of an event loop takes, in CPU time of its own thread.

Whoever talks to a central waits for one turn of its loop, or two. In real time that depends on what
else the machine does; the work of the loop's own thread in a turn does not, and a central that is
held up works all the while.

As a program it is the `sluicegate` command, with the longest turn in a file:

    python turns.py FILE central --listen 127.0.0.1:0 --limits limits.toml
"""

import asyncio
import mmap
import struct
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

__all__ = ["LongestTurn", "timed_turns"]

_SECONDS = struct.Struct("<d")


@contextmanager
def timed_turns(note: Callable[[float], object]) -> Iterator[None]:
    """Tell `note` the CPU seconds of each turn of each loop of this process."""
    loop: Any = asyncio.BaseEventLoop
    run_once = loop._run_once

    def timed(self: asyncio.BaseEventLoop) -> None:
        begun = time.thread_time()
        run_once(self)
        note(time.thread_time() - begun)

    loop._run_once = timed
    try:
        yield
    finally:
        loop._run_once = run_once


class LongestTurn:
    """A number of seconds in a file, which another process sees."""

    def __init__(self, path: Path) -> None:
        if not path.exists():
            path.write_bytes(_SECONDS.pack(0.0))
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), _SECONDS.size)

    @property
    def seconds(self) -> float:
        (seconds,) = _SECONDS.unpack_from(self._memory)
        return float(seconds)

    def note(self, seconds: float) -> None:
        if seconds > self.seconds:
            _SECONDS.pack_into(self._memory, 0, seconds)

    def forget(self) -> None:
        _SECONDS.pack_into(self._memory, 0, 0.0)


if __name__ == "__main__":
    from sluicegate.cli.main import main

    with timed_turns(LongestTurn(Path(sys.argv[1])).note):
        sys.exit(main(sys.argv[2:]))
