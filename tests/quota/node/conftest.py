"""Centrals to talk to, with the real state machine behind a small server."""

from collections.abc import Callable, Iterator

import pytest

from sluicegate.quota import Entry
from tests.harness.mini_central import SmallCentral


@pytest.fixture
def make_central() -> Iterator[Callable[..., SmallCentral]]:
    made: list[SmallCentral] = []

    def make(*entries: Entry) -> SmallCentral:
        central = SmallCentral(list(entries) or [Entry("front", "ann", rates={"requests": 50.0})])
        central.start()
        made.append(central)
        return central

    yield make
    for central in made:
        central.close()
