"""Reports off a wire are booked as those from dicts are, and quotas arrive as they were given."""

import random
from collections.abc import Iterator

import pytest

from sluicegate.quota import Entry, Ledger
from sluicegate.quota.messages import Ask, Line, Quota, Report, ServiceQuota, Share, UserAsk
from sluicegate.quota.wire import CentralWire, NodeWire
from sluicegate.quota.wire.json_frames import write_classic

START = 1000
RATES = {"requests": 40.0, "traffic_up": 1000.0}


def ledgers(count: int, **options: int) -> list[Ledger]:
    entries = [
        Entry(service, "*", rates=RATES, burst_seconds=5.0) for service in ("front", "storage")
    ]
    return [Ledger(entries, **options) for _ in range(count)]


class Traffic:
    """Totals of some nodes with users that come and go."""

    def __init__(self, nodes: int, users: int, number: int) -> None:
        self.random = random.Random(number)
        self.names = [f"node-{node}" for node in range(nodes)]
        self.users = users
        self.totals: dict[tuple[str, str, str, str], Line] = {}

    def report(self, node: str, slot: int) -> Report:
        lines: dict[str, dict[str, dict[str, Line]]] = {}
        for service in ("front", "storage", "unknown"):
            for user in self.random.sample(range(self.users), self.users // 3):
                for resource in RATES:
                    key = (node, service, f"user-{user}", resource)
                    before = self.totals.get(key, Line(0.0, 0, 0, 0.0, 0.0))
                    amount = self.random.choice([0.0, 1.0, 2.5, 30.0])
                    line = Line(
                        before.consumed + amount,
                        before.rejected + self.random.choice([0, 0, 4]),
                        before.requests + int(amount),
                        before.consumed,
                        self.random.choice([0.0, 0.0, 1.5]),
                    )
                    self.totals[key] = line
                    lines.setdefault(service, {}).setdefault(f"user-{user}", {})[resource] = line
        sequence = slot - START + 1
        return Report(node, 1, sequence, 1, sequence - 1, slot - 1, 0.5, lines)


@pytest.mark.parametrize("binary", [True, False], ids=["binary", "text"])
def test_a_report_off_a_wire_is_booked_to_the_bit_as_one_from_dicts(binary: bool) -> None:
    by_dict, by_wire = ledgers(2)
    traffic = Traffic(4, 30, 1)
    nodes = {name: NodeWire(binary=binary) for name in traffic.names}
    centrals = {name: CentralWire() for name in traffic.names}
    for slot in range(START, START + 40):
        for name in traffic.names:
            report = traffic.report(name, slot)
            packed = centrals[name].read(nodes[name].write(report))
            assert isinstance(packed, Report)
            # In the same order: buckets are numbered as they come.
            report = report._replace(lines=dict(packed.lines.items()))
            assert by_dict.book(slot, report) is by_wire.book(slot, packed)
        if slot % 5 == 0:
            users = {user: UserAsk(2, {}) for user in ("new", "user-3")}
            ask = Ask("node-1", 1, slot, {"front": users})
            assert by_dict.ask(slot, ask) == by_wire.ask(slot, ask)
        by_dict.assign(slot)
        by_wire.assign(slot)
        assert by_dict.quota(slot, "node-2") == by_wire.quota(slot, "node-2")
    assert by_dict.snapshot() == by_wire.snapshot()
    assert by_dict.consumption_sum(START + 20) == by_wire.consumption_sum(START + 20)


@pytest.mark.parametrize("binary", [True, False], ids=["binary", "text"])
def test_a_node_is_told_what_it_was_given_also_when_it_asked(binary: bool) -> None:
    (ledger,) = ledgers(1)
    traffic = Traffic(3, 60, 2)
    node, central = NodeWire(binary=binary), CentralWire()
    for slot in range(START, START + 30):
        for name in traffic.names:
            report = traffic.report(name, slot)
            if name == "node-0":
                received = central.read(node.write(report))
                assert isinstance(received, Report)
                report = received
            ledger.book(slot, report)
        ledger.assign(slot)
        asked = {f"user-{traffic.random.randrange(90)}": UserAsk(2, {}) for _ in range(3)}
        answers = ledger.ask(slot + 0.6, Ask("node-0", 1, slot + 0.6, {"front": asked}))
        services = ledger.quota(slot, "node-0")
        told = {
            name: {user: dict(shares) for user, shares in part.users.items()}
            for name, part in services.items()
        }
        for whole, sent in ((True, services), *((False, answer) for answer in answers.values())):
            quota = Quota("c", 1, ledger.version, slot + 1, 1.5, 3, whole, 0.05, sent)
            heard = node.read(central.write(quota))
            assert isinstance(heard, Quota)
            if whole:
                assert told["front"].keys() == heard.services["front"].users.keys()
                assert _near(heard.services, told)
            else:
                assert heard == quota or not binary


def _near(heard: dict[str, ServiceQuota], told: dict[str, dict[str, dict[str, Share]]]) -> bool:
    return all(
        heard[name].users[user][resource] == pytest.approx(share, rel=1e-6, abs=1e-9)
        for name, users in told.items()
        for user, shares in users.items()
        for resource, share in shares.items()
    )


def test_a_number_that_has_another_owner_is_looked_up_again() -> None:
    """A bucket is forgotten after a minute's silence, and its number goes to somebody else."""
    (ledger,) = ledgers(1, nr_slot=1)
    node, central = NodeWire(), CentralWire()
    line = Line(5.0, 0, 5, 0.0, 0.0)

    def report(slot: int, lines: dict[str, dict[str, dict[str, Line]]]) -> None:
        sequence = slot - START + 1
        told = Report("n", 1, sequence, 1, sequence - 1, slot - 1, 0.5, lines)
        received = central.read(node.write(told))
        assert isinstance(received, Report)
        ledger.book(slot, received)
        ledger.assign(slot)
        services = ledger.quota(slot, "n")
        heard = node.read(central.write(Quota("c", 1, 1, slot + 1, 1.5, 1, True, 0.05, services)))
        assert isinstance(heard, Quota)
        assert heard.services["front"].users == services["front"].users

    report(START, {"front": {"ann": {"requests": line}}})
    for slot in range(START + 1, START + 100):
        report(slot, {})
    assert ledger.cells == 0
    report(START + 100, {"front": {"bob": {"requests": line}}})
    report(START + 101, {"front": {"ann": {"requests": line._replace(consumed=12.0)}}})
    assert ledger.recorded("front", "bob", "requests") == 5.0
    assert ledger.recorded("front", "ann", "requests") == 12.0
    assert set(ledger.quota(START + 101, "n")["front"].users) == {"ann", "bob"}


def test_a_quota_that_waited_too_long_names_nobody_else() -> None:
    (ledger,) = ledgers(1, nr_slot=1)
    line = Line(5.0, 0, 5, 0.0, 0.0)
    ledger.book(START, Report("n", 1, 1, 1, 0, START, 0.5, {"front": {"ann": {"requests": line}}}))
    ledger.assign(START)
    old = ledger.quota(START, "n")
    for slot in range(START + 1, START + 100):
        sequence = slot - START + 1
        ledger.book(slot, Report("n", 1, sequence, 1, sequence - 1, slot, 0.5, {}))
        ledger.assign(slot)
    lines = {"front": {"bob": {"requests": line}}}
    ledger.book(START + 100, Report("n", 1, 101, 1, 100, START + 100, 0.5, lines))
    assert old["front"].users == {}


def test_lines_off_a_wire_can_be_booked_in_another_ledger() -> None:
    one, other = ledgers(2)
    node, central = NodeWire(), CentralWire()
    line = Line(5.0, 0, 5, 0.0, 0.0)
    for sequence, names in ((1, ["ann", "bob"]), (2, ["bob"])):
        lines = {"front": {name: {"requests": line} for name in names}}
        report = central.read(node.write(Report("n", 1, sequence, 1, 0, START, 0.5, lines)))
        assert isinstance(report, Report)
        (one if sequence == 1 else other).book(START, report)
    assert other.recorded("front", "ann", "requests") == 0.0
    assert other.recorded("front", "bob", "requests") == 5.0


def test_a_service_of_another_kind_is_told_the_usage() -> None:
    class Counting:
        def __init__(self, name: str, service_ledger: object) -> None:
            self.seen: list[dict[str, dict[str, float]]] = []

        def consume(self, slot: int, usage: object) -> None:
            self.seen.append(usage.consumed)  # type: ignore[attr-defined]

        def assign(self, slot: int) -> None:
            pass

        def quota(self, slot: int, node_id: str) -> dict[str, dict[str, Share]]:
            return {"ann": {"requests": Share(7.5, 1.0)}}

    made: list[Counting] = []

    def make(name: str, service_ledger: object) -> Counting:
        made.append(Counting(name, service_ledger))
        return made[-1]

    ledger = Ledger([Entry("front", "*", rates=RATES)], services={"front": make})
    node, central = NodeWire(), CentralWire()
    lines = {"front": {"ann": {"requests": Line(5.0, 0, 5, 0.0, 0.0)}}}
    report = central.read(node.write(Report("n", 1, 1, 1, 0, START, 0.5, lines)))
    assert isinstance(report, Report)
    ledger.book(START, report)
    assert made[0].seen == [{"ann": {"requests": 5.0}}]
    quota = Quota("c", 1, 1, START + 1, 1.5, 1, True, 0.05, ledger.quota(START, "n"))
    assert node.read(central.write(quota)) == quota


def many(users: int, sequence: int) -> Report:
    lines = {f"user-{n}": {"requests": Line(5.0, 0, 5, 0.0, 0.0)} for n in range(users)}
    return Report("n", 1, sequence, 1, sequence - 1, START, 0.5, {"front": lines, "unknown": lines})


def test_to_look_up_the_names_of_a_report_books_nothing() -> None:
    """Broke once: the sums of the slot were there already, with room for fewer buckets."""
    (ledger,) = ledgers(1)
    node, central = NodeWire(), CentralWire()
    first, second = (central.read(node.write(many(*each))) for each in ((3, 1), (9000, 2)))
    assert isinstance(first, Report)
    assert isinstance(second, Report)
    ledger.book(START + 1, first)
    before = ledger.consumption_sum(START), ledger.cells
    assert len(list(ledger.resolve_names(START + 1, second))) > 2
    assert (ledger.consumption_sum(START), ledger.cells) == before
    assert ledger.booked("n", 1) == 1
    assert ledger.book(START + 1, second)
    assert len(ledger.consumption_sum(START)["front"]) == 9000
    assert ledger.cells == 9000


def test_a_long_quota_is_written_in_steps() -> None:
    (ledger,) = ledgers(1)
    node, central = NodeWire(), CentralWire()
    report = central.read(node.write(many(12_000, 1)))
    assert isinstance(report, Report)
    ledger.book(START + 1, report)
    ledger.assign(START + 1)
    quota = Quota("c", 1, 1, START + 2, 1.5, 1, True, 0.05, ledger.quota(START + 1, "n"))

    def steps() -> Iterator[None]:
        frame = yield from central.writing(quota)
        assert node.read(frame) == quota

    assert len(list(steps())) >= 2
    assert node.read(central.write(quota)) == quota


def test_a_classic_node_is_told_amounts_alone() -> None:
    (ledger,) = ledgers(1)
    counts = {"front": {"ann": {"requests": 3}}}
    ledger.book_classic(START, "n", START, counts, {})
    ledger.assign(START)
    told = write_classic(ledger.quota(START + 1, "n"), START + 2)
    assert told == '{"front":{"1002":{"ann":{"requests":58.0}}},"storage":{"1002":{}}}'
