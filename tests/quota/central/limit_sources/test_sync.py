"""`LimitsSync`: limits follow their source, and a source that fails changes nothing."""

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
from sluicegate.quota.central.limit_sources import LimitsSource, NotEditable, open_source
from sluicegate.quota.central.limit_sources.edits import Put, Remove, Replace
from sluicegate.quota.central.limit_sources.sqlite_file import SqliteFile
from sluicegate.quota.central.limit_sources.sync import LimitsSync, NoValidLimits
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


def sync_of(limits: object) -> tuple[LimitsSync, Ledger]:
    ledger = Ledger()
    return LimitsSync(open_source(limits), ledger), ledger  # type: ignore[arg-type]


def test_limits_hold_from_the_first_report_on() -> None:
    limits_sync, ledger = sync_of([ANN])
    limits_sync.load_initial()
    ledger.begin(1)
    assert ledger.services == ["front"]
    assert ledger.entry("front", "ann") == ANN
    assert limits_sync.entries == [ANN]
    assert limits_sync.loaded_at == pytest.approx(time.time(), abs=60)


def test_limits_that_change_hold_from_the_next_assignment_on() -> None:
    limits_sync, ledger = sync_of([ANN])
    limits_sync.load_initial()
    ledger.begin(1)
    assert not limits_sync.refresh()
    limits_sync.put(BOB)
    assert limits_sync.entries == [ANN, BOB]
    assert ledger.entry("front", "bob") is None
    ledger.assign(1)
    assert ledger.entry("front", "bob") == BOB
    assert limits_sync.remove("front", "ann")
    assert not limits_sync.remove("front", "ann")
    limits_sync.replace([ANN])
    ledger.assign(2)
    assert ledger.entry("front", "bob") is None


def test_without_limits_at_the_start_nothing_starts(tmp_path: Path) -> None:
    limits_sync, _ = sync_of(tmp_path / "none.toml")
    with pytest.raises(ConfigError, match="cannot read .*none.toml"):
        limits_sync.load_initial()


SLIPS = {
    "a rate that is text": FILE.replace("= 5", '= "5"'),
    "a key is missing": FILE.replace("user", "usr"),
    "no list": FILE.replace("[[limit]]", "[limit]"),
}


@pytest.mark.parametrize("text", SLIPS.values(), ids=SLIPS)
def test_entries_of_which_none_is_valid_never_mean_no_limits(tmp_path: Path, text: str) -> None:
    path = tmp_path / "limits.toml"
    write(path, text)
    limits_sync, _ = sync_of(path)
    with pytest.raises(NoValidLimits, match=r"limits.toml has entries, but none is valid.*limit"):
        limits_sync.load_initial()
    write(path, FILE)
    limits_sync.load_initial()
    path.write_text(text)
    limits_sync.refresh()
    assert limits_sync.entries == [ANN]
    assert limits_sync.error or limits_sync.complaints


def test_of_many_complaints_the_first_ten_are_told(tmp_path: Path) -> None:
    path = tmp_path / "limits.toml"
    write(path, FILE.replace("= 5", "= -1") * 12)
    with pytest.raises(NoValidLimits, match=r"limit 10 .*got -1; and 2 more$"):
        sync_of(path)[0].load_initial()


@pytest.mark.parametrize("text", ["", "# none yet\n", FILE + FILE.replace("= 5", "= -1")])
def test_a_file_that_is_empty_on_purpose_or_good_in_part_is_taken(
    tmp_path: Path, text: str
) -> None:
    path = tmp_path / "limits.toml"
    write(path, text)
    limits_sync, _ = sync_of(path)
    limits_sync.load_initial()
    assert limits_sync.entries == ([ANN] if text.startswith("[[limit]]") else [])


def test_the_last_good_entry_can_be_removed_beside_a_bad_one(tmp_path: Path) -> None:
    path = tmp_path / "limits.db"
    limits_sync, _ = sync_of(path)
    limits_sync.load_initial()
    limits_sync.put(ANN)
    with closing(sqlite3.connect(path)) as hand, hand:
        hand.execute("INSERT INTO limits VALUES ('front', 'bob', 10, '{}')")
    limits_sync.refresh()
    assert limits_sync.entries == [ANN]
    assert limits_sync.remove("front", "ann")
    assert limits_sync.entries == []
    assert limits_sync.error is None


def test_a_bad_file_keeps_the_limits_and_says_why_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "limits.toml"
    write(path, FILE)
    limits_sync, ledger = sync_of(path)
    limits_sync.load_initial()
    caplog.clear()
    caplog.set_level(logging.INFO)
    write(path, FILE + "nonsense\n")
    for _ in range(3):
        assert not limits_sync.refresh()
    assert limits_sync.entries == [ANN]
    assert ledger.entry("front", "ann") == ANN
    assert limits_sync.error is not None
    assert "line 5" in limits_sync.error
    assert limits_sync.errors == 3
    told = [record.levelname for record in caplog.records if str(path) in record.getMessage()]
    assert told == ["ERROR"]
    write(path, FILE.replace("ann", "bob"))
    assert limits_sync.refresh()
    assert limits_sync.error is None
    assert [entry.user for entry in limits_sync.entries] == ["bob"]


def test_complaints_are_logged_and_kept(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "limits.toml"
    write(path, FILE + '[[limit]]\nservice = "front"\n')
    limits_sync, _ = sync_of(path)
    limits_sync.load_initial()
    (complaint,) = limits_sync.complaints
    assert "user is missing" in complaint
    assert complaint in caplog.text


def test_a_slip_in_an_entry_that_was_good_lifts_no_limit(tmp_path: Path) -> None:
    path = tmp_path / "limits.toml"
    write(path, FILE)
    limits_sync, _ = sync_of(path)
    limits_sync.load_initial()
    new = '[[limit]]\nservice = "front"\nuser = "carl"\nrequests = "2"\n'
    path.write_text(FILE.replace("= 5", '= "5"') + new)
    limits_sync.refresh()
    assert limits_sync.entries == [ANN]
    ann, carl = limits_sync.complaints
    assert ann.endswith("skipped: its previous value is kept")
    assert carl.endswith("skipped")
    path.write_text(FILE.replace("= 5", "= 6"))
    limits_sync.refresh()
    assert [entry.rates for entry in limits_sync.entries] == [{"requests": 6.0}]
    assert limits_sync.complaints == []


def test_a_function_that_says_the_same_changes_nothing() -> None:
    asked = []

    def limits() -> list[Entry]:
        asked.append(1)
        return [Entry("front", "ann", rates={"requests": 5.0})]

    source = AlwaysChanged(open_source(limits))
    ledger = Ledger()
    limits_sync = LimitsSync(source, ledger)
    limits_sync.load_initial()
    assert [limits_sync.refresh() for _ in range(3)] == [False, False, False]
    assert len(asked) == 4


class AlwaysChanged:
    """A source whose version token changes with every call, and whose loading can be held up."""

    name = "always another"
    is_editable = False

    def __init__(self, source: LimitsSource, before_load: Callable[[], None] | None = None) -> None:
        self._source = source
        self._before_load = before_load

    def version_token(self) -> object:
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

    limits_sync = LimitsSync(AlwaysChanged(open_source(lambda: [ANN, ANN, BOB]), fail), Ledger())
    limits_sync.load_initial()
    assert limits_sync.entries == [ANN, BOB]
    assert len(limits_sync.complaints) == 1
    faults.append(KeyError("limits"))
    assert not limits_sync.refresh()
    assert limits_sync.error == "always another failed: KeyError('limits')"
    assert not limits_sync.refresh()
    assert limits_sync.error is None


def test_what_is_not_ours_to_edit_is_refused() -> None:
    limits_sync, _ = sync_of(lambda: [ANN])
    limits_sync.load_initial()
    with pytest.raises(NotEditable):
        limits_sync.put(BOB)
    assert limits_sync.error is None


def test_readings_are_applied_in_their_order_and_one_that_is_lost_is_read_again() -> None:
    limits_sync, _ = sync_of([ANN])
    first = limits_sync.read()
    again = limits_sync.read()
    assert first is not None
    assert again is not None
    assert limits_sync.apply_reading(again)
    assert not limits_sync.apply_reading(first)
    assert limits_sync.read() is None


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
    limits_sync = LimitsSync(source, ledger)
    limits_sync.load_initial()
    for change, expected in (
        (Put(ANN), [ANN]),
        (Put(BOB), [ANN, BOB]),
        (Put(ANN), [ANN, BOB]),
        (Remove("front", "ann"), [BOB]),
        (Remove("front", "ann"), [BOB]),
        (Replace([BOB, ANN]), [BOB, ANN]),
    ):
        _, reading = limits_sync.edit(change)
        if reading is not None:
            limits_sync.apply_reading(reading)
        assert limits_sync.entries == expected
        assert ledger.entry("front", "bob") == (BOB if BOB in expected else None)
        assert not limits_sync.refresh()
    assert source.loads == 1
    other.put(CARL)
    limits_sync.put(BOB)
    assert limits_sync.entries == [ANN, BOB, CARL]
    assert source.loads == 2
    source.close()
    other.close()


def test_a_change_whose_reading_was_lost_is_in_the_next_one() -> None:
    """Who asked for it has hung up meanwhile."""
    limits_sync, _ = sync_of([ANN])
    limits_sync.load_initial()
    limits_sync.edit(Put(BOB))
    limits_sync.put(CARL)
    assert limits_sync.entries == [ANN, BOB, CARL]


def test_a_source_that_hangs_is_told_and_heard_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sluicegate.quota.central.limit_sources.sync._HUNG_AFTER", 0.05)
    hold = threading.Event()
    limits_sync = LimitsSync(AlwaysChanged(open_source([ANN]), lambda: until(hold)), Ledger())

    async def story() -> None:
        reading = asyncio.create_task(limits_sync.refresh_async())
        await asyncio.to_thread(wait_for, lambda: limits_sync.error)
        assert limits_sync.error == "always another has not answered for 0.05 s"
        hold.set()
        assert await reading
        assert limits_sync.error is None

    asyncio.run(story())


def test_changes_do_not_pile_up_before_a_source_that_hangs() -> None:
    hold = threading.Event()
    source = open_source([ANN])
    limits_sync = LimitsSync(AlwaysChanged(source, lambda: until(hold)), Ledger())

    async def story() -> None:
        edits = [asyncio.create_task(limits_sync.edit_async(Put(BOB))) for _ in range(17)]
        done, _ = await asyncio.wait(edits, timeout=PATIENCE, return_when=asyncio.FIRST_COMPLETED)
        with pytest.raises(ConfigError, match="edits of always another: 16 are running; try again"):
            done.pop().result()
        hold.set()
        await asyncio.wait(edits, timeout=PATIENCE)
        await limits_sync.edit_async(Put(BOB))

    asyncio.run(story())


def test_a_loop_does_not_wait_for_a_source() -> None:
    asked, held = threading.Event(), threading.Event()

    def wait() -> None:
        asked.set()
        until(held)

    limits_sync = LimitsSync(AlwaysChanged(open_source([ANN]), wait), Ledger())

    async def story() -> None:
        reading = asyncio.create_task(limits_sync.refresh_async())
        await asyncio.to_thread(until, asked)
        assert not await limits_sync.refresh_async()  # another one asks already
        held.set()
        assert await reading
        await limits_sync.edit_async(Put(BOB))

    asyncio.run(story())
    assert limits_sync.entries == [ANN, BOB]
