"""Names in shared memory that are gone after the test, and processes that are too."""

import os
import secrets
import signal
import traceback
from collections.abc import Callable, Iterator

import pytest

from headgate import SharedKeyed


@pytest.fixture
def name() -> Iterator[str]:
    name = f"test-{os.getpid()}-{secrets.token_hex(4)}"
    yield name
    SharedKeyed.unlink(name)


class Children:
    """Forked processes, each running a function of ours."""

    def __init__(self) -> None:
        self.running: list[int] = []

    def start(self, function: Callable[[], object]) -> int:
        child = os.fork()
        if child == 0:
            status = 1
            try:
                function()
                status = 0
            finally:
                if status:
                    traceback.print_exc()
                os._exit(status)
        self.running.append(child)
        return child

    def kill(self, child: int) -> None:
        os.kill(child, signal.SIGKILL)
        self.running.remove(child)
        _, status = os.waitpid(child, 0)
        assert os.WIFSIGNALED(status), "it had ended by itself"

    def join(self) -> None:
        """Wait for all; each must have gone well."""
        while self.running:
            _, status = os.waitpid(self.running.pop(), 0)
            assert status == 0


@pytest.fixture
def children() -> Iterator[Children]:
    children = Children()
    yield children
    for child in list(children.running):
        children.kill(child)
