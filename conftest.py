"""Runs the Python blocks of the README and the docs, each file from top to bottom."""

from collections.abc import Iterator

import pytest
from sybil import Sybil
from sybil.parsers.markdown import PythonCodeBlockParser, SkipParser

from headgate import SharedKeyed

IN_SHARED_MEMORY = ("readme", "docs-api", "docs-usage")


@pytest.fixture(scope="module")
def fresh_shared_memory() -> Iterator[None]:
    """Without what a run that was broken off has left under the names of the docs."""
    for name in IN_SHARED_MEMORY:
        SharedKeyed.unlink(name)
    yield
    for name in IN_SHARED_MEMORY:
        SharedKeyed.unlink(name)


pytest_collect_file = Sybil(
    parsers=[PythonCodeBlockParser(), SkipParser()],
    patterns=["README.md", "docs/*.md"],
    fixtures=["fresh_shared_memory"],
).pytest()
