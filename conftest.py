"""Runs the Python blocks of the README and the docs.

A page is one test, from top to bottom: its blocks share their names, so they belong into one
process, however pytest-xdist distributes tests.
"""

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from sybil import Sybil
from sybil.parsers.markdown import PythonCodeBlockParser, SkipParser

PAGES = Sybil(parsers=[PythonCodeBlockParser(), SkipParser()], patterns=["README.md", "docs/*.md"])


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    return Page.from_parent(parent, path=file_path) if PAGES.should_parse(file_path) else None


class Page(pytest.File):
    def collect(self) -> Iterator[pytest.Item]:
        if list(PAGES.parse(self.path).examples()):
            yield Blocks.from_parent(self, name="blocks")


class Blocks(pytest.Item):
    def runtest(self) -> None:
        with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as monkeypatch:
            # Two runs on one machine must not meet in the shared memory that the docs name.
            monkeypatch.setattr("sluicegate.shm.file._SHM_FOLDER", Path(folder))
            for example in PAGES.parse(self.path).examples():
                example.evaluate()

    def reportinfo(self) -> tuple[Path, int, str]:
        return self.path, 0, self.path.name
