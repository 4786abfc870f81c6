"""Snapshots: what is written down is taken up again, and what is torn is not believed."""

import struct
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicegate.errors import ConfigError
from sluicegate.quota.ledger import snapshot
from sluicegate.quota.ledger.ledger import Ledger
from sluicegate.quota.messages import Ask, UserAsk
from tests.harness.spending_nodes import Fleet, entry


def busy(slots: int = 15, *, overload: float = 3.0) -> Fleet:
    fleet = Fleet(Ledger([entry(r=1000.0)]), 4)
    fleet.run(slots, overload * 1000.0)
    return fleet


def test_who_goes_on_from_a_snapshot_gives_what_the_other_would_have_given() -> None:
    fleet = busy()
    other = Ledger([entry(r=1000.0)])
    other.restore(fleet.ledger.snapshot())
    for ledger in (fleet.ledger, other):
        for name in fleet.names:
            ledger.book(fleet.slot, fleet.report(name))
        ledger.assign(fleet.slot)
    for name in fleet.names:
        assert other.quota(fleet.slot, name) == fleet.ledger.quota(fleet.slot, name)
    for look in ("level", "outstanding", "recorded"):
        place = ("front", "u", "r", fleet.slot) if look == "level" else ("front", "u", "r")
        assert getattr(other, look)(*place) == getattr(fleet.ledger, look)(*place)


def test_a_debt_outlives_the_central() -> None:
    fleet = busy()
    fleet.consumed["node-0"] += 50_000.0
    fleet.ledger.book(fleet.slot, fleet.report("node-0"))
    other = Ledger([entry(r=1000.0)])
    other.restore(fleet.ledger.snapshot())
    level = other.level("front", "u", "r", fleet.slot)
    assert level is not None
    assert level < -40_000.0


@pytest.mark.parametrize("away", [1, 3, 5, 30])
def test_what_nodes_live_on_until_they_are_back_is_not_given_to_those_who_are(away: int) -> None:
    fleet = busy()
    other = Ledger([entry(r=1000.0)])
    other.restore(fleet.ledger.snapshot())
    for _ in range(away):
        fleet.slot += 1
        for name in fleet.names:
            fleet.consumed[name] += 250.0  # their credit, then the safe share
    fleet.ledger = other
    admitted, safe = [], []
    for _ in range(8):  # one of four is back, and wants all there is
        admitted.append(fleet.step({"node-0": 3000.0}, silent=tuple(fleet.names[1:]))["node-0"])
        safe.append(fleet.safe("node-0"))
    assert sum(admitted[:4]) <= 4 * 250.0 + 500.0, admitted
    assert safe[:3] == pytest.approx([250.0] * 3, rel=0.02)
    assert admitted[7] >= 990.0, admitted  # after four seconds the others are gone


def test_reports_that_are_in_the_snapshot_are_not_booked_again() -> None:
    fleet = busy()
    other = Ledger([entry(r=1000.0)])
    other.restore(fleet.ledger.snapshot())
    recorded = other.recorded("front", "u", "r")
    fleet.slot -= 1
    assert not any(other.book(fleet.slot, fleet.report(name)) for name in fleet.names)
    assert other.recorded("front", "u", "r") == recorded


def test_the_limits_are_those_of_today() -> None:
    fleet = busy(slots=30, overload=0.1)  # the bucket is full: 10,000
    other = Ledger([entry(r=10.0)])
    other.restore(fleet.ledger.snapshot())
    unused = sum(map(fleet.credit, fleet.names))
    assert other.available("front", "u", "r", fleet.slot) + unused == 100.0
    free = Ledger([entry("somebody", r=10.0)])
    free.restore(fleet.ledger.snapshot())
    assert free.level("front", "u", "r", fleet.slot) is None
    assert free.recorded("front", "u", "r") > 0.0


def test_an_empty_ledger_has_a_snapshot_too() -> None:
    other = Ledger([entry()])
    other.restore(Ledger([entry()]).snapshot())
    assert repr(other) == "Ledger(services=[], nodes=0, cells=0)"


@given(st.data())
def test_a_snapshot_that_is_torn_or_changed_is_refused(data: st.DataObject) -> None:
    packed = bytearray(SNAPSHOT)
    if data.draw(st.booleans(), label="torn"):
        packed = packed[: data.draw(st.integers(0, len(packed) - 1))]
    else:
        at = data.draw(st.integers(0, len(packed) - 1))
        packed[at] ^= data.draw(st.integers(1, 255))
    ledger = Ledger([entry(r=1000.0)])
    with pytest.raises(ConfigError, match="snapshot"):
        ledger.restore(bytes(packed))
    assert repr(ledger) == "Ledger(services=[], nodes=0, cells=0)"


SNAPSHOT = busy().ledger.snapshot()


@given(st.binary(max_size=200))
def test_bytes_with_a_right_sum_and_no_sense_are_refused_too(body: bytes) -> None:
    head = struct.pack("=8sIII", snapshot.MAGIC, snapshot.VERSION, snapshot.CELL_SIZE, 0)
    packed = head[:-4] + struct.pack("=I", zlib.crc32(body)) + body
    with pytest.raises(ConfigError, match="snapshot"):
        Ledger([entry()]).restore(packed)


def test_slots_of_another_length_are_told() -> None:
    with pytest.raises(ConfigError, match=r"slots of 1.0 s, expected 0.5"):
        Ledger([entry()], slot_seconds=0.5).restore(SNAPSHOT)


def test_only_a_new_ledger_is_restored() -> None:
    with pytest.raises(ValueError, match="booked nothing yet"):
        busy().ledger.restore(SNAPSHOT)


def test_who_is_restored_knows_how_many_nodes_there_are_and_what_they_were_given() -> None:
    fleet = busy()
    other = Ledger([entry(r=1000.0)])
    other.restore(fleet.ledger.snapshot())
    assert other.nodes(fleet.slot) == 4
    for name in fleet.names:
        share = other.quota(fleet.slot - 1, name)["front"].users["u"]["r"]
        assert share == (fleet.granted[name], fleet.safe(name))


def test_a_limit_that_began_late_is_not_older_after_a_restart() -> None:
    ledger = Ledger([entry(r=1000.0)])
    fleet = Fleet(ledger, 1)
    fleet.run(50, 0.0)
    ledger.set_limits([entry(r=1000.0), entry("late", r=100.0)])
    fleet.run(2, 0.0)
    other = Ledger([entry(r=1000.0), entry("late", r=100.0)])
    other.restore(ledger.snapshot())
    for each in (ledger, other):
        each.book(fleet.slot, fleet.report("node-0"))
        each.ask(fleet.slot, Ask("node-0", 1, fleet.slot, {"front": {"late": UserAsk(1, {})}}))
    level = other.level("front", "late", "r", fleet.slot)
    assert level == ledger.level("front", "late", "r", fleet.slot)
    assert level is not None
    assert level <= 300.0
