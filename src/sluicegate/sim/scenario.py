"""A scenario: what cluster, which limits, what traffic, which faults, and what must hold.

Scenarios are TOML files that people copy and change; those that come with Sluicegate lie in
scenarios/. `load` takes one of their names, or a path. Each key is checked: one that is unknown
or has a value that makes no sense is a `ConfigError` that says where, what, and what was
expected. docs/simulator.md explains every key.

Times are seconds since the simulation began, rates units per second.
"""

import re
import shlex
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from sluicegate.errors import ConfigError
from sluicegate.quota.central.snapshot_schedule import LEAST_SECONDS, STATE_SECONDS
from sluicegate.quota.ledger.limit_entry import Entry
from sluicegate.sim.measures import GOALS
from sluicegate.sim.network import KINDS, Quality
from sluicegate.sim.toml_reader import Table
from sluicegate.sim.traffic import Cost, Rate, Spread, Traffic

__all__ = [
    "Clocks",
    "Fault",
    "Scenario",
    "all_limits",
    "entry_of",
    "limits_over_time",
    "load",
    "names",
    "rate_of",
    "read",
]

_SHIPPED = Path(__file__).parent / "scenarios"
_MOST_MACHINES = 10_000
# What no real cluster comes near, and floats bear without a loss.
_MOST_SECONDS = 1e7
_MOST_RATE = 1e9
_MOST_COST = 1e12
_MOST_USERS = 100_000
_MOST_TOGETHER = 1_000_000
_RANGE = re.compile(r"(.*?)(\d+)\.\.(\d+)")


@dataclass(slots=True, frozen=True)
class Clocks:
    """How wrong the machines' clocks are."""

    skew: dict[str, float] = field(default_factory=dict)  # seconds ahead of the right time
    drift: dict[str, float] = field(default_factory=dict)  # 0.01: one percent too fast


@dataclass(slots=True, frozen=True)
class Fault:
    """Something that happens to machines or the network at a time."""

    at: float
    what: str
    machines: tuple[str, ...] = ()  # names; "leader" is whoever leads then
    seconds: float | None = None  # until it is over; None: it is not, or not by itself
    disk: bool = True  # whether a machine finds again what it had written
    others: tuple[str, ...] = ()  # that the machines do not hear
    groups: tuple[tuple[str, ...], ...] = ()  # of a partition
    quality: Quality | None = None  # of the network
    limits: tuple[Entry, ...] = ()  # instead of those before
    by: float = 0.0  # seconds that a wall clock jumps
    nodes: int = 0  # how many join
    every: float = 0.0  # seconds between random mishaps, in the mean

    def __str__(self) -> str:
        whom = ", ".join(self.machines) or " | ".join(
            f"{group[0]} and {len(group) - 1} more" if len(group) > 1 else group[0]
            for group in self.groups
        )
        lasting = f" for {self.seconds:g} s" if self.seconds is not None else ""
        more = f" {self.nodes}" if self.nodes else f" by {self.by:g} s" if self.by else ""
        return f"{self.what} {whom}".rstrip() + more + lasting


@dataclass(slots=True, frozen=True)
class Scenario:
    """Everything about a run but the system and the random seed."""

    name: str
    title: str
    about: str
    seconds: float
    warm_up: float
    slot_seconds: float
    nodes: tuple[str, ...]
    centrals: tuple[str, ...]
    election_seconds: float  # from its start until the only central leads
    lease_seconds: float  # of several centrals
    snapshot_seconds: float
    snapshot_least: float  # seconds between two, while nodes come and go
    deposed_seconds: float  # how long a leader that lost its lease leads on
    limits: tuple[Entry, ...]
    traffic: tuple[Traffic, ...]
    network: Quality
    clocks: Clocks
    faults: tuple[Fault, ...]
    goals: dict[str, float]
    burst: bool  # whether over counts what a full bucket may let through at once
    wait: bool = True  # a request may wait for an answer of the leader
    exact_arrivals: bool = False  # each request at its own moment, or those of a step together
    file: str = ""
    options: tuple[str, ...] = ()  # of the command, by which this differs from the file

    @property
    def command(self) -> str:
        """What runs the same again, but for the random seed."""
        what = self.name if Path(self.file).parent == _SHIPPED else self.file
        return shlex.join(["sluicegate", "simulate", what, *self.options])

    def lasting(self, seconds: float) -> "Scenario":
        """The same for another time; what would come later does not come."""
        if seconds <= self.warm_up:
            raise ConfigError(
                f"{self.name}: {seconds:g} seconds: expected more than the warm-up, "
                f"{self.warm_up:g} s"
            )
        if seconds > _MOST_SECONDS:
            raise ConfigError(
                f"{self.name}: {seconds:g} seconds: expected at most {_MOST_SECONDS:g}"
            )
        faults = tuple(fault for fault in self.faults if fault.at < seconds)
        options = (*self.options, "--seconds", repr(seconds).removesuffix(".0"))
        return replace(self, seconds=seconds, faults=faults, options=options)


def entry_of(entries: Sequence[Entry], service: str, user: str) -> Entry | None:
    """The entry of a user: their own, or the one for all users without one."""
    found = None
    for entry in entries:
        if entry.service == service and entry.user == user:
            return entry
        if entry.service == service and entry.user == "*":
            found = entry
    return found


def rate_of(entries: Sequence[Entry], service: str, user: str, resource: str) -> float | None:
    entry = entry_of(entries, service, user)
    return entry.rates.get(resource) if entry is not None else None


def limits_over_time(
    scenario: Scenario, service: str, user: str
) -> list[tuple[float, Entry | None]]:
    """The entries of a user, each with the time from which on it holds."""
    since = [(0.0, scenario.limits)]
    since += [(fault.at, fault.limits) for fault in scenario.faults if fault.what == "limits"]
    return [(time, entry_of(entries, service, user)) for time, entries in since]


def all_limits(scenario: Scenario) -> list[tuple[Entry, ...]]:
    """The limits at first, and all that take their place."""
    changes = [fault.limits for fault in scenario.faults if fault.what == "limits"]
    return [scenario.limits, *changes]


def names() -> list[str]:
    """The scenarios that come with Sluicegate; those of pacing are `sim.pacing`'s."""
    found = (path.stem for path in _SHIPPED.glob("*.toml"))
    return sorted((name for name in found if not name.startswith("pacing-")), key=_in_order)


def _in_order(name: str) -> tuple[bool, str]:
    return name.startswith("doorman"), name


def load(name_or_path: str) -> Scenario:
    """A scenario by its name, or from a file of one's own."""
    path = Path(name_or_path)
    if path.suffix != ".toml":
        path = _SHIPPED / f"{name_or_path}.toml"
        if name_or_path not in names():
            known = ", ".join(names())
            raise ConfigError(
                f"there is no scenario {name_or_path!r}: expected a file that ends in .toml, "
                f"or one of {known}"
            )
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot read the scenario: {error}") from error
    return read(text, file=str(path), name=path.stem)


def read(text: str, *, file: str = "scenario", name: str = "scenario") -> Scenario:
    """A scenario out of the text of its file."""
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{file}: invalid TOML: {error}") from error
    table = Table(values, file)
    seconds = table.number("seconds", above=True, most=_MOST_SECONDS)
    slot_seconds = table.number("slot_seconds", 1.0, least=0.1, most=60.0)
    nodes = _machines(table, "nodes", "node")
    centrals = _machines(table, "centrals", "central")
    known = (*nodes, *centrals)
    if set(nodes) & set(centrals) or "leader" in known:
        table.wrong("centrals", 'names that no node has, nor "leader"')
    unused = "lease_seconds" if len(centrals) == 1 else "election_seconds"
    if unused in table:
        table.wrong(unused, f"no such key with {len(centrals)} central(s): see docs/simulator.md")
    goals = table.table("goals")
    exact_arrivals = table.flag("exact_arrivals", False)
    wait = table.flag("wait", True)
    scenario = Scenario(
        name=name,
        file=file,
        title=table.text("title"),
        about=table.text("about"),
        seconds=seconds,
        warm_up=table.number("warm_up", 10.0 * slot_seconds, most=seconds),
        slot_seconds=slot_seconds,
        nodes=nodes,
        centrals=centrals,
        election_seconds=table.number("election_seconds", 2.0, most=_MOST_SECONDS),
        lease_seconds=table.number("lease_seconds", 2.0, least=0.4, most=60.0),
        snapshot_seconds=table.number(
            "snapshot_seconds", STATE_SECONDS, least=0.1, most=_MOST_SECONDS
        ),
        snapshot_least=table.number("snapshot_least", LEAST_SECONDS, least=0.1, most=_MOST_SECONDS),
        deposed_seconds=table.number("deposed_seconds", 0.0, most=_MOST_SECONDS),
        limits=_limits(table, "limit"),
        traffic=tuple(one for each in table.tables("traffic") for one in _traffic(each, nodes)),
        network=_quality(table.table("network"), Quality()),
        clocks=_clocks(table.table("clocks"), known),
        faults=tuple(sorted(_faults(table, nodes, centrals, seconds), key=lambda fault: fault.at)),
        burst=goals.flag("burst", False),
        wait=wait,
        exact_arrivals=exact_arrivals,
        goals={goal: goals.number(goal, most=_MOST_COST) for goal in GOALS if goal in goals},
    )
    for goal in goals.rest():
        goals.wrong(goal, "a goal; there are burst, " + ", ".join(GOALS))
    table.done()
    if not exact_arrivals and any(traffic.together > 1 for traffic in scenario.traffic):
        table.wrong("traffic", "exact_arrivals = true, where requests come together")
    if not scenario.warm_up < seconds:
        table.wrong("warm_up", f"less than seconds, {seconds:g}")
    return scenario


def _machines(table: Table, key: str, kind: str) -> tuple[str, ...]:
    if isinstance(table.value(key), list):
        machines = tuple(table.texts(key))
        if len(set(machines)) < len(machines):
            table.wrong(key, "distinct names")
        return machines
    count = table.whole(key, least=1, most=_MOST_MACHINES)
    return tuple(f"{kind}-{number}" for number in range(1, count + 1))


def _limits(table: Table, key: str) -> tuple[Entry, ...]:
    entries: list[Entry] = []
    for one in table.tables(key):
        service = one.text("service", "front")
        user = one.text("user")
        burst_seconds = one.number("burst_seconds", 10.0, most=_MOST_SECONDS)
        resources = one.rest()
        rates = {resource: one.number(resource, most=_MOST_COST) for resource in resources}
        if any((entry.service, entry.user) == (service, user) for entry in entries):
            one.wrong("user", f"one limit for each user of {service!r}: this is the second")
        try:
            entries.append(Entry(service, user, burst_seconds=burst_seconds, rates=rates))
        except ValueError as error:
            one.wrong("user", f"a limit that holds: {error}")
    return tuple(entries)


def _traffic(table: Table, nodes: tuple[str, ...]) -> list[Traffic]:
    user = table.text("user")
    users = table.whole("users", 1, least=1, most=_MOST_USERS)
    if users > 1 and "{}" not in user:
        table.wrong("user", f"a string with {{}} for the number of the user, since users = {users}")
    spread, moves = Spread(), []
    if "nodes" in table:
        spread = _spread(table, nodes)
    for move in table.tables("move"):
        moves.append((move.number("at", most=_MOST_SECONDS), _spread(move, nodes)))
        move.done()
    traffic = Traffic(
        service=table.text("service", "front"),
        user=user,
        rate=_rate(table),
        spread=spread,
        moves=tuple(sorted(moves, key=lambda move: move[0])),
        cost=_cost(table),
        poisson=table.text("arrival", "poisson", of=("poisson", "even")) == "poisson",
        duration=table.number("duration", 0.0, most=_MOST_SECONDS),
        together=table.whole("together", 1, least=1, most=_MOST_TOGETHER),
    )
    table.done()
    if users == 1:
        return [traffic]
    return [replace(traffic, user=user.replace("{}", str(n))) for n in range(1, users + 1)]


def _rate(table: Table) -> Rate:
    """`rate = 3000`, `rate = [[0, 3000], [60, 500]]`, with `ramp = true` or `cycle = [2, 8]`."""
    value = table.value("rate")
    points: list[Any] = value if isinstance(value, list) else [[0, value]]
    expected = (
        "requests per second, or a list of [time, requests per second] in order of time, "
        f"up to {_MOST_RATE:g} per second"
    )
    table.check(
        "rate",
        lambda _: bool(points) and all(_is_pair(p, _MOST_SECONDS, _MOST_RATE) for p in points),
        expected,
    )
    times = [time for time, _ in points]
    table.check("rate", lambda _: times == sorted(set(times)), expected)
    cycle = table.value("cycle", None)
    if cycle is not None:
        table.check("cycle", lambda pair: _is_pair(pair) and pair[0] > 0, "[on, off] in seconds")
        cycle = (float(cycle[0]), float(cycle[1]))
    steps = tuple((float(time), float(rate)) for time, rate in points)
    return Rate(steps, table.flag("ramp", False), cycle)


def _is_pair(
    value: object, most_first: float = _MOST_SECONDS, most_second: float = _MOST_SECONDS
) -> bool:
    """Whether it is two numbers, from 0 up to the most of each."""
    return (
        isinstance(value, list)
        and len(value) == 2
        and all(isinstance(n, int | float) and not isinstance(n, bool) for n in value)
        and 0 <= value[0] <= most_first
        and 0 <= value[1] <= most_second
    )


def _spread(table: Table, nodes: tuple[str, ...]) -> Spread:
    """`nodes = "all"`, `"hopping"`, a list of names or ranges, or a table of weights."""
    value = table.value("nodes")
    if value == "all":
        return Spread()
    if value == "hopping":
        stay = table.value("stay", [1, 3])
        fits = _is_pair(stay) and 0 < stay[0] <= stay[1]
        table.check("stay", lambda _: fits, "[least, most] in seconds, above 0")
        return Spread(stay=(float(stay[0]), float(stay[1])))
    if isinstance(value, dict):
        weights = table.table("nodes")
        return Spread(
            tuple(
                (n, weights.number(n, above=True, most=_MOST_COST)) for n in _known(weights, nodes)
            )
        )
    chosen = _named(table, "nodes", nodes)
    return Spread(tuple((node, 1.0) for node in chosen))


def _known(weights: Table, nodes: tuple[str, ...]) -> list[str]:
    chosen = [node for node in nodes if node in weights]
    for node in chosen:
        weights.value(node)
    for other in weights.rest():
        weights.wrong(other, f"machines of this cluster: {_few(nodes)}")
    return chosen


def _named(table: Table, key: str, known: tuple[str, ...], default: Any = None) -> tuple[str, ...]:
    """Machines by name; `node-2..5` are four."""
    chosen: list[str] = []
    for text in table.texts(key) if default is None else table.texts(key, default):
        span = _RANGE.fullmatch(text)
        if span:
            first, last = int(span[2]), int(span[3])
            if not first <= last < first + _MOST_MACHINES:
                table.wrong(key, f"ranges from a lower number to a higher, not {text!r}")
            chosen += [f"{span[1]}{number}" for number in range(first, last + 1)]
        else:
            chosen.append(text)
    for one in chosen:
        if one not in known:
            table.wrong(key, f"machines of this cluster ({_few(known)}), not {one!r}")
    return tuple(chosen)


def _few(machines: tuple[str, ...]) -> str:
    """The names, or the first and the last of many."""
    if len(machines) <= 12:
        return ", ".join(machines)
    return f"{', '.join(machines[:3])} ... {machines[-1]}"


def _cost(table: Table) -> dict[str, Cost]:
    """`cost = 3`, or a table: `{ requests = 1, bytes = { mean = 9000, tail = 1.5 } }`."""
    value = table.value("cost", 1)
    if not isinstance(value, dict):
        return {"requests": Cost(table.number("cost", 1.0, above=True, most=_MOST_COST))}
    table = table.table("cost")
    costs = {}
    for resource in value:
        if isinstance(value[resource], dict):
            one = table.table(resource)
            costs[resource] = Cost(
                one.number("mean", above=True, most=_MOST_COST),
                one.number("tail", above=True, least=1.0, most=1e6),
            )
            one.done()
        else:
            costs[resource] = Cost(table.number(resource, most=_MOST_COST))
    if not costs:
        table.wrong("cost", "at least one resource")
    return costs


def _quality(table: Table, before: Quality) -> Quality:
    kinds = table.texts("kinds", None)
    if kinds is not None:
        table.check("kinds", lambda _: set(kinds) <= set(KINDS), "some of " + ", ".join(KINDS))
    quality = Quality(
        delay=table.number("delay", before.delay, most=_MOST_SECONDS),
        jitter=table.number("jitter", before.jitter, most=_MOST_SECONDS),
        loss=table.number("loss", before.loss, most=1.0),
        double=table.number("double", before.double, most=1.0),
        late=table.number("late", before.late, most=1.0),
        late_slots=table.number("late_slots", before.late_slots, most=_MOST_SECONDS),
        kinds=before.kinds if kinds is None else frozenset(kinds),
    )
    table.done()
    return quality


def _clocks(table: Table, known: tuple[str, ...]) -> Clocks:
    """A table of machines: `node-1 = { skew = 2.0, drift = 0.0001 }`."""
    clocks = Clocks()
    for machine in _known(table, known):
        one = table.table(machine)
        clocks.skew[machine] = one.number("skew", 0.0, least=-_MOST_SECONDS, most=_MOST_SECONDS)
        clocks.drift[machine] = one.number("drift", 0.0, least=-0.5, most=0.5)
        one.done()
    return clocks


_TAKES = {
    "crash": {"machine", "seconds", "disk"},
    "restart": {"machine", "disk"},
    "freeze": {"machine", "seconds"},
    "thaw": {"machine"},
    "partition": {"groups", "seconds"},
    "sever": {"machine", "others", "seconds"},
    "network": {"seconds", "delay", "jitter", "loss", "double", "late", "late_slots", "kinds"},
    "step": {"machine", "by"},
    "join": {"nodes"},
    "leave": {"machine"},
    "stop": {"machine", "seconds"},
    "limits": {"limit"},
    "mishaps": {"every", "seconds"},
}


def _faults(
    table: Table, nodes: tuple[str, ...], centrals: tuple[str, ...], seconds: float
) -> list[Fault]:
    network = _quality(table.table("network"), Quality())
    faults = [_fault(one, nodes, centrals, network, seconds) for one in table.tables("fault")]
    joining = sum(fault.nodes for fault in faults)
    taken = {f"node-{len(nodes) + number}" for number in range(1, joining + 1)} & {
        *nodes,
        *centrals,
    }
    if taken:
        name = sorted(taken)[0]
        table.wrong("fault", f"names that are free for those who join: there is a {name!r}")
    return faults


def _fault(
    table: Table,
    nodes: tuple[str, ...],
    centrals: tuple[str, ...],
    network: Quality,
    seconds_in_all: float,
) -> Fault:
    known = (*nodes, *centrals)
    what = table.text("what", of=_TAKES)
    at = table.number("at", most=_MOST_SECONDS)
    if at >= seconds_in_all:
        table.wrong("at", f"before the end, {seconds_in_all:g} s")
    takes = _TAKES[what]
    seconds = None
    if "seconds" in takes:
        seconds = table.number("seconds", None, above=True, most=_MOST_SECONDS)
    able = {"leave": nodes, "stop": (*centrals, "leader")}.get(what, (*known, "leader"))
    fault = Fault(
        at,
        what,
        machines=_named(table, "machine", able) if "machine" in takes else (),
        seconds=seconds,
        disk=table.flag("disk", True) if "disk" in takes else True,
        others=_named(table, "others", known) if "others" in takes else (),
        groups=_groups(table, known) if "groups" in takes else (),
        limits=_limits(table, "limit") if "limit" in takes else (),
        by=table.number("by", least=-_MOST_SECONDS, most=_MOST_SECONDS) if "by" in takes else 0.0,
        nodes=table.whole("nodes", 1, least=1, most=1000) if "nodes" in takes else 0,
        every=table.number("every", least=0.01, most=_MOST_SECONDS) if "every" in takes else 0.0,
    )
    if what == "network":
        changed = table.part("network", table.rest())
        return replace(fault, quality=_quality(changed, network))
    table.done()
    return fault


def _groups(table: Table, known: tuple[str, ...]) -> tuple[tuple[str, ...], ...]:
    groups = table.value("groups")
    if not isinstance(groups, list) or not groups:
        table.wrong("groups", "a list of lists of machines")
    named = [_named(table.part("groups", {"groups": group}), "groups", known) for group in groups]
    together = [machine for group in named for machine in group]
    if len(set(together)) < len(together):
        table.wrong("groups", "groups that have no machine in common")
    return tuple(named)
