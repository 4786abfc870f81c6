"""The keeper: limits follow their source, and a source that fails changes nothing."""

import asyncio
import logging
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import closing
from pathlib import Path

import pytest

from sluicegate.errors import ConfigError
from sluicegate.quota import Entry, Ledger
from sluicegate.quota.central.sources import LimitsSource, NotEditable, open_source
from sluicegate.quota.central.sources.edits import Put, Remove, Replace
from sluicegate.quota.central.sources.sqlite_file import SqliteFile
from sluicegate.quota.central.sources.sync import LimitsKeeper, NoValidLimits
from tests.harness.waits import PATIENCE, wait_for

ANN = Entry("front", "ann", rates={"requests": 5.0})
CARL = Entry("front", "carl", rates={"requests": 2.0})
BOB = Entry("front", "bob", rates={"requests": 1.0})
FILE = '[[limit]]\nservice = "front"\nuser = "ann"\nrequests = 5\n'


def write(path: Path, text: str) -> None:
    path.write_text(text)
    os.utime(path, ns=(0, time.time_ns() - 10**9))


def until(event: threading.Event) -> None:
    assert event.wait(PATIENCE)


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


SLIPS = {
    "a rate that is text": FILE.replace("= 5", '= "5"'),
    "a key is missing": FILE.replace("user", "usr"),
    "no list": FILE.replace("[[limit]]", "[limit]"),
}


@pytest.mark.parametrize("text", SLIPS.values(), ids=SLIPS)
def test_entries_of_which_none_is_valid_never_mean_no_limits(tmp_path: Path, text: str) -> None:
    path = tmp_path / "limits.toml"
    write(path, text)
    keeper, _ = keeper_of(path)
    with pytest.raises(NoValidLimits, match=r"limits.toml has entries and none is valid.*limit"):
        keeper.begin()
    write(path, FILE)
    keeper.begin()
    path.write_text(text)
    keeper.refresh()
    assert keeper.entries == [ANN]
    assert keeper.error or keeper.complaints


def test_of_many_complaints_the_first_ten_are_told(tmp_path: Path) -> None:
    path = tmp_path / "limits.toml"
    write(path, FILE.replace("= 5", "= -1") * 12)
    with pytest.raises(NoValidLimits, match=r"limit 10 .*got -1; and 2 more$"):
        keeper_of(path)[0].begin()


@pytest.mark.parametrize("text", ["", "# none yet\n", FILE + FILE.replace("= 5", "= -1")])
def test_a_file_that_is_empty_on_purpose_or_good_in_part_is_taken(
    tmp_path: Path, text: str
) -> None:
    path = tmp_path / "limits.toml"
    write(path, text)
    keeper, _ = keeper_of(path)
    keeper.begin()
    assert keeper.entries == ([ANN] if text.startswith("[[limit]]") else [])


def test_the_last_good_entry_can_be_removed_beside_a_bad_one(tmp_path: Path) -> None:
    path = tmp_path / "limits.db"
    keeper, _ = keeper_of(path)
    keeper.begin()
    keeper.put(ANN)
    with closing(sqlite3.connect(path)) as hand, hand:
        hand.execute("INSERT INTO limits VALUES ('front', 'bob', 10, '{}')")
    keeper.refresh()
    assert keeper.entries == [ANN]
    assert keeper.remove("front", "ann")
    assert keeper.entries == []
    assert keeper.error is None


def test_a_bad_file_keeps_the_limits_and_says_why_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "limits.toml"
    write(path, FILE)
    keeper, ledger = keeper_of(path)
    keeper.begin()
    caplog.clear()
    caplog.set_level(logging.INFO)
    write(path, FILE + "nonsense\n")
    for _ in range(3):
        assert not keeper.refresh()
    assert keeper.entries == [ANN]
    assert ledger.entry("front", "ann") == ANN
    assert keeper.error is not None
    assert "line 5" in keeper.error
    assert keeper.errors == 3
    told = [record.levelname for record in caplog.records if str(path) in record.getMessage()]
    assert told == ["ERROR"]
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


def test_a_slip_in_an_entry_that_was_good_lifts_no_limit(tmp_path: Path) -> None:
    path = tmp_path / "limits.toml"
    write(path, FILE)
    keeper, _ = keeper_of(path)
    keeper.begin()
    new = '[[limit]]\nservice = "front"\nuser = "carl"\nrequests = "2"\n'
    path.write_text(FILE.replace("= 5", '= "5"') + new)
    keeper.refresh()
    assert keeper.entries == [ANN]
    ann, carl = keeper.complaints
    assert ann.endswith("skipped: it stays as it was")
    assert carl.endswith("skipped")
    path.write_text(FILE.replace("= 5", "= 6"))
    keeper.refresh()
    assert [entry.rates for entry in keeper.entries] == [{"requests": 6.0}]
    assert keeper.complaints == []


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


class Counted(SqliteFile):
    """How often everything was read."""

    loads = 0

    def load(self) -> tuple[list[Entry], list[str]]:
        self.loads += 1
        return super().load()


def test_a_change_of_ours_reads_nothing_again_and_one_of_another_does(tmp_path: Path) -> None:
    """With 100,000 limits, to set one of them took seconds."""
    source, other = Counted(tmp_path / "limits.db"), SqliteFile(tmp_path / "limits.db")
    ledger = Ledger()
    keeper = LimitsKeeper(source, ledger)
    keeper.begin()
    for change, expected in (
        (Put(ANN), [ANN]),
        (Put(BOB), [ANN, BOB]),
        (Put(ANN), [ANN, BOB]),
        (Remove("front", "ann"), [BOB]),
        (Remove("front", "ann"), [BOB]),
        (Replace([BOB, ANN]), [BOB, ANN]),
    ):
        _, reading = keeper.edit(change)
        if reading is not None:
            keeper.apply(reading)
        assert keeper.entries == expected
        assert ledger.entry("front", "bob") == (BOB if BOB in expected else None)
        assert not keeper.refresh()
    assert source.loads == 1
    other.put(CARL)
    keeper.put(BOB)
    assert keeper.entries == [ANN, BOB, CARL]
    assert source.loads == 2
    source.close()
    other.close()


def test_a_change_whose_reading_was_lost_is_in_the_next_one() -> None:
    """Who asked for it has hung up meanwhile."""
    keeper, _ = keeper_of([ANN])
    keeper.begin()
    keeper.edit(Put(BOB))
    keeper.put(CARL)
    assert keeper.entries == [ANN, BOB, CARL]


def test_a_source_that_hangs_is_told_and_heard_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sluicegate.quota.central.sources.sync._SILENCE", 0.05)
    hold = threading.Event()
    keeper = LimitsKeeper(AnyStamp(open_source([ANN]), lambda: until(hold)), Ledger())

    async def story() -> None:
        reading = asyncio.create_task(keeper.refresh_async())
        await asyncio.to_thread(wait_for, lambda: keeper.error)
        assert keeper.error == "always another has not answered for 0.05 s"
        hold.set()
        assert await reading
        assert keeper.error is None

    asyncio.run(story())


def test_changes_do_not_pile_up_before_a_source_that_hangs() -> None:
    hold = threading.Event()
    source = open_source([ANN])
    keeper = LimitsKeeper(AnyStamp(source, lambda: until(hold)), Ledger())

    async def story() -> None:
        edits = [asyncio.create_task(keeper.edit_async(Put(BOB))) for _ in range(17)]
        done, _ = await asyncio.wait(edits, timeout=PATIENCE, return_when=asyncio.FIRST_COMPLETED)
        with pytest.raises(ConfigError, match="16 changes of always another go on; try again"):
            done.pop().result()
        hold.set()
        await asyncio.wait(edits, timeout=PATIENCE)
        await keeper.edit_async(Put(BOB))

    asyncio.run(story())


def test_a_loop_does_not_wait_for_a_source() -> None:
    asked, held = threading.Event(), threading.Event()

    def wait() -> None:
        asked.set()
        until(held)

    keeper = LimitsKeeper(AnyStamp(open_source([ANN]), wait), Ledger())

    async def story() -> None:
        reading = asyncio.create_task(keeper.refresh_async())
        await asyncio.to_thread(until, asked)
        assert not await keeper.refresh_async()  # another one asks already
        held.set()
        assert await reading
        await keeper.edit_async(Put(BOB))

    asyncio.run(story())
    assert keeper.entries == [ANN, BOB]
