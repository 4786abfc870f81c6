"""The keeper: limits follow their source, and a source that fails changes nothing."""

import asyncio
import logging
import os
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from headgate.errors import ConfigError
from headgate.quota import Entry, Ledger
from headgate.quota.central.change import Put
from headgate.quota.central.keeper import LimitsKeeper
from headgate.quota.sources import LimitsSource, NotEditable, open_source

ANN = Entry("front", "ann", rates={"requests": 5.0})
BOB = Entry("front", "bob", rates={"requests": 1.0})
FILE = '[[limit]]\nservice = "front"\nuser = "ann"\nrequests = 5\n'


def write(path: Path, text: str) -> None:
    path.write_text(text)
    os.utime(path, ns=(0, time.time_ns() - 10**9))


def keeper_of(limits: object) -> tuple[LimitsKeeper, Ledger]:
    ledger = Ledger()
    return LimitsKeeper(open_source(limits), ledger), ledger  # type: ignore[arg-type]


def test_limits_hold_from_the_first_report_on() -> None:
    keeper, ledger = keeper_of([ANN])
    keeper.begin()
    ledger.begin(1)
    assert ledger.services == ["front"]
    assert ledger.entry("front", "ann") == ANN
    assert keeper.entries == [ANN]
    assert keeper.loaded_at == pytest.approx(time.time(), abs=60)


def test_limits_that_change_hold_from_the_next_assignment_on() -> None:
    keeper, ledger = keeper_of([ANN])
    keeper.begin()
    ledger.begin(1)
    assert not keeper.refresh()
    keeper.put(BOB)
    assert keeper.entries == [ANN, BOB]
    assert ledger.entry("front", "bob") is None
    ledger.assign(1)
    assert ledger.entry("front", "bob") == BOB
    assert keeper.remove("front", "ann")
    assert not keeper.remove("front", "ann")
    keeper.replace([ANN])
    ledger.assign(2)
    assert ledger.entry("front", "bob") is None


def test_without_limits_at_the_start_nothing_starts(tmp_path: Path) -> None:
    keeper, _ = keeper_of(tmp_path / "none.toml")
    with pytest.raises(ConfigError, match="none.toml cannot be read"):
        keeper.begin()


def test_a_bad_file_keeps_the_limits_and_says_why_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "limits.toml"
    write(path, FILE)
    keeper, ledger = keeper_of(path)
    keeper.begin()
    caplog.set_level(logging.INFO)
    write(path, FILE + "nonsense\n")
    for _ in range(3):
        assert not keeper.refresh()
    assert keeper.entries == [ANN]
    assert ledger.entry("front", "ann") == ANN
    assert keeper.error is not None
    assert "line 5" in keeper.error
    assert keeper.errors == 3
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    write(path, FILE.replace("ann", "bob"))
    assert keeper.refresh()
    assert keeper.error is None
    assert [entry.user for entry in keeper.entries] == ["bob"]


def test_complaints_are_logged_and_kept(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "limits.toml"
    write(path, FILE + '[[limit]]\nservice = "front"\n')
    keeper, _ = keeper_of(path)
    keeper.begin()
    (complaint,) = keeper.complaints
    assert "user is missing" in complaint
    assert complaint in caplog.text


def test_a_function_that_says_the_same_changes_nothing() -> None:
    asked = []

    def limits() -> list[Entry]:
        asked.append(1)
        return [Entry("front", "ann", rates={"requests": 5.0})]

    source = AnyStamp(open_source(limits))
    ledger = Ledger()
    keeper = LimitsKeeper(source, ledger)
    keeper.begin()
    assert [keeper.refresh() for _ in range(3)] == [False, False, False]
    assert len(asked) == 4


class AnyStamp:
    """A source whose stamp is always another, and whose loading can be held up."""

    name = "always another"
    is_editable = False

    def __init__(self, source: LimitsSource, before_load: Callable[[], None] | None = None) -> None:
        self._source = source
        self._before_load = before_load

    def stamp(self) -> object:
        return object()

    def load(self) -> tuple[list[Entry], list[str]]:
        if self._before_load is not None:
            self._before_load()
        return self._source.load()

    def put(self, entry: Entry) -> None:
        self._source.put(entry)

    def remove(self, service: str, user: str) -> bool:
        return self._source.remove(service, user)

    def replace(self, entries: Iterable[Entry]) -> None:
        self._source.replace(entries)

    def close(self) -> None:
        self._source.close()


def test_a_source_of_another_that_fails_or_doubles_stops_nothing() -> None:
    faults: list[Exception] = []

    def fail() -> None:
        if faults:
            raise faults.pop()

    keeper = LimitsKeeper(AnyStamp(open_source(lambda: [ANN, ANN, BOB]), fail), Ledger())
    keeper.begin()
    assert keeper.entries == [ANN, BOB]
    assert len(keeper.complaints) == 1
    faults.append(KeyError("limits"))
    assert not keeper.refresh()
    assert keeper.error == "always another failed: KeyError('limits')"
    assert not keeper.refresh()
    assert keeper.error is None


def test_what_is_not_ours_to_edit_is_refused() -> None:
    keeper, _ = keeper_of(lambda: [ANN])
    keeper.begin()
    with pytest.raises(NotEditable):
        keeper.put(BOB)
    assert keeper.error is None


def test_readings_are_applied_in_their_order_and_one_that_is_lost_is_read_again() -> None:
    keeper, _ = keeper_of([ANN])
    first = keeper.read()
    again = keeper.read()
    assert first is not None
    assert again is not None
    assert keeper.apply(again)
    assert not keeper.apply(first)
    assert keeper.read() is None


def test_a_loop_does_not_wait_for_a_source() -> None:
    asked, held = threading.Event(), threading.Event()

    def wait() -> None:
        asked.set()
        held.wait(10)

    keeper = LimitsKeeper(AnyStamp(open_source([ANN]), wait), Ledger())

    async def story() -> None:
        reading = asyncio.create_task(keeper.refresh_async())
        await asyncio.to_thread(asked.wait, 10)
        assert not await keeper.refresh_async()  # another one asks already
        held.set()
        assert await reading
        await keeper.edit_async(Put(BOB))

    asyncio.run(story())
    assert keeper.entries == [ANN, BOB]
