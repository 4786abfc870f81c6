"""Names in shared memory that are gone after the test."""

import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from sluicegate import SharedKeyed


@pytest.fixture
def name() -> Iterator[str]:
    name = f"test-{os.getpid()}-{secrets.token_hex(4)}"
    yield name
    SharedKeyed.unlink(name)


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """In memory, for properties: they make a file for each example, which a disk may be slow at."""
    with TemporaryDirectory(prefix="sluicegate-test-", dir="/dev/shm") as folder:
        yield Path(folder)
