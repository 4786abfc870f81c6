"""A pacing scenario: the cluster and its target, the traffic, what goes wrong, and what must hold.

A scenario file with a table `[pacing]` is one of these; docs/simulator.md explains every key. Times
are seconds since the run began, and it begins `start` seconds after a period does.
"""

import shlex
import tomllib
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from sluicegate.errors import ConfigError
from sluicegate.sim.pacing.measures import GOALS
from sluicegate.sim.pacing.rewards import Rewards
from sluicegate.sim.pacing.scores import DISTRIBUTIONS, Scores
from sluicegate.sim.pacing.traffic import SHAPES, Change, Shape
from sluicegate.sim.toml_reader import Table

__all__ = ["NodeEvent", "PacingScenario", "StoreLink", "is_pacing", "load", "names", "read"]

_SHIPPED = Path(__file__).parents[1] / "scenarios"
_MOST_NODES = 1_000
_MOST_SECONDS = 1e7
_MOST_TARGET = 1e12
_EVENTS = ("join", "leave", "crash", "restart")
_OPTIONS = ("reserve", "burst_interval", "boost", "explore", "reward_rate", "reward_within")


@dataclass(slots=True, frozen=True)
class StoreLink:
    """The way to the store and back."""

    delay: float = 0.001  # seconds, each way
    jitter: float = 0.001  # up to so much more
    loss: float = 0.0  # the part of requests that get no answer; half of them have arrived
    timeout: float = 1.0
    outages: tuple[tuple[float, float], ...] = ()  # begin and end

    def is_away(self, time: float) -> bool:
        return any(begin <= time < end for begin, end in self.outages)


@dataclass(slots=True, frozen=True)
class NodeEvent:
    """A node comes or goes."""

    at: float
    what: str
    node: int  # from 0

    def __str__(self) -> str:
        return f"{self.what} node-{self.node + 1}"


@dataclass(slots=True, frozen=True)
class PacingScenario:
    """Everything about a run but the random seed."""

    name: str
    title: str
    about: str
    nodes: int  # at the start
    target: float
    period: float
    seconds: float
    warm_up: int  # periods that are not measured, but for the figures of a cold start
    sync_interval: float
    shape: Shape
    load: float  # what comes, as a multiple of what the target needs
    is_poisson: bool
    unit: float  # the cost of a request
    rewards: Rewards
    scores: Scores | None
    link: StoreLink
    events: tuple[NodeEvent, ...]
    skew: float  # seconds by which the nodes' wall clocks are wrong, at most
    options: dict[str, Any]  # of the limiter
    goals: dict[str, float]
    start: float = 0.0
    reached: float = 0.0  # the part of the target that was reached before the start
    file: str = ""
    changed: tuple[str, ...] = field(default=())  # options of the command

    @property
    def command(self) -> str:
        """What runs the same again, but for the random seed."""
        what = self.name if Path(self.file).parent == _SHIPPED else self.file
        return shlex.join(["sluicegate", "simulate", what, *self.changed])

    @property
    def periods(self) -> int:
        """Periods that the run touches."""
        return max(1, int(-(-(self.start + self.seconds - 1e-9) // self.period)))

    @property
    def changes(self) -> list[tuple[float, str]]:
        """What happens in the course of the run, in order of time."""
        found = [(event.at, str(event)) for event in self.events]
        for change in self.shape.changes:
            more = f"traffic x {change.load:g}" if change.load != 1.0 else "all traffic"
            where = "" if change.nodes is None else f" on {len(change.nodes)} of the nodes"
            found.append((change.at, more + where))
        for begin, end in self.link.outages:
            found += [(begin, "store away"), (end, "store back")]
        return sorted(one for one in found if one[0] < self.seconds)

    def lasting(self, seconds: float) -> "PacingScenario":
        """The same for another time; what would come later does not come."""
        if not self.warm_up * self.period < seconds <= _MOST_SECONDS:
            raise ConfigError(
                f"{self.name}: {seconds:g} seconds: expected more than the warm-up, "
                f"{self.warm_up * self.period:g} s, and at most {_MOST_SECONDS:g}"
            )
        changed = (*self.changed, "--seconds", repr(seconds).removesuffix(".0"))
        events = tuple(event for event in self.events if event.at < seconds)
        return replace(self, seconds=seconds, events=events, changed=changed)


def is_pacing(text: str) -> bool:
    """Whether the text of a scenario file is a pacing scenario."""
    try:
        return "pacing" in tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return False


def names() -> list[str]:
    """The pacing scenarios that come with Sluicegate."""
    return sorted(path.stem for path in _SHIPPED.glob("pacing-*.toml"))


def load(name_or_path: str) -> PacingScenario:
    """A scenario by its name, or from a file of one's own."""
    path = Path(name_or_path)
    if path.suffix != ".toml":
        if name_or_path not in names():
            raise ConfigError(
                f"there is no pacing scenario {name_or_path!r}: expected a file that ends in "
                f".toml, or one of {', '.join(names())}"
            )
        path = _SHIPPED / f"{name_or_path}.toml"
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot read the scenario: {error}") from error
    return read(text, file=str(path), name=path.stem)


def read(text: str, *, file: str = "scenario", name: str = "scenario") -> PacingScenario:
    """A scenario out of the text of its file."""
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{file}: invalid TOML: {error}") from error
    table = Table(values, file)
    pacing = table.table("pacing")
    period = pacing.number("period", least=1.0, most=_MOST_SECONDS)
    target = pacing.number("target", above=True, most=_MOST_TARGET)
    start = table.number("start", 0.0, most=period)
    periods = table.number("periods", 3.0, above=True, most=_MOST_SECONDS / period)
    warm_up = table.whole("warm_up", 1, least=0, most=int(periods))
    seconds = table.number("seconds", periods * period - start, above=True, most=_MOST_SECONDS)
    nodes = table.whole("nodes", least=1, most=_MOST_NODES)
    rewards = _rewards(table.table("rewards"))
    traffic = table.table("traffic")
    unit = traffic.number("unit", 1.0, above=True, most=target)
    load = traffic.number("load", above=True, most=1e6)
    rate = load * target / rewards.conversion / period / unit
    events = _events(table, nodes)
    scenario = PacingScenario(
        name=name,
        file=file,
        title=table.text("title"),
        about=table.text("about"),
        nodes=nodes,
        target=target,
        period=period,
        seconds=seconds,
        start=start,
        reached=table.number("reached", 0.0, most=1.0),
        warm_up=warm_up,
        sync_interval=pacing.number("sync_interval", 2.0, above=True, most=3600.0),
        shape=_shape(traffic, rate, nodes + _joins(events, nodes), period, start),
        load=load,
        is_poisson=traffic.text("arrival", "poisson", of=("poisson", "even")) == "poisson",
        unit=unit,
        rewards=rewards,
        scores=_scores(table.table("scores")) if "scores" in table else None,
        link=_link(table),
        events=events,
        skew=table.table("clocks").number("skew", 0.0, most=86_400.0),
        options=_options(pacing),
        goals=_goals(table.table("goals")),
    )
    for one in (pacing, traffic, table):
        one.done()
    return scenario


def _options(table: Table) -> dict[str, Any]:
    """Parameters of the limiter; it checks them itself."""
    found: dict[str, Any] = {key: table.number(key) for key in _OPTIONS if key in table}
    if "curve" in table:
        found["curve"] = table.value("curve")
    return found


def _goals(table: Table) -> dict[str, float]:
    goals = {name: table.number(name, most=_MOST_TARGET) for name in GOALS if name in table}
    for name in table.rest():
        table.wrong(name, "a goal; there are " + ", ".join(GOALS))
    return goals


def _shape(table: Table, rate: float, nodes: int, period: float, start: float) -> Shape:
    cycle = _pair(table, "cycle", (2.0, 2.0))
    if cycle[0] <= 0.0:
        table.wrong("cycle", "[on, off] in seconds, on above 0")
    changes = []
    for one in table.tables("change"):
        at = one.number("at", most=_MOST_SECONDS)
        chosen = None
        if "nodes" in one:
            chosen = tuple(range(one.whole("nodes", least=1, most=nodes)))
        changes.append(Change(at, one.number("load", 1.0, most=1e6), chosen))
        one.done()
    return Shape(
        table.text("shape", "even", of=SHAPES),
        rate,
        nodes,
        period,
        start=start,
        skew=table.number("skew", 1.0, most=10.0),
        stay=table.number("stay", 20.0, above=True, most=_MOST_SECONDS),
        busy=table.whole("busy", max(1, nodes // 4), least=1, most=nodes),
        cycle=cycle,
        changes=tuple(sorted(changes, key=lambda change: change.at)),
    )


def _rewards(table: Table) -> Rewards:
    rewards = Rewards(
        table.number("conversion", 1.0, above=True, most=1.0),
        table.flag("random", False),
        _pair(table, "delay", (0.0, 0.0)),
    )
    table.done()
    return rewards


def _scores(table: Table) -> Scores:
    scores = Scores(
        table.text("distribution", "uniform", of=DISTRIBUTIONS),
        table.whole("tiers", 5, least=1, most=1000),
        table.number("drift", 0.0, least=-1e6, most=1e6),
    )
    table.done()
    return scores


def _link(table: Table) -> StoreLink:
    store = table.table("store")
    outages = []
    for one in table.tables("outage"):
        begin = one.number("at", most=_MOST_SECONDS)
        outages.append((begin, begin + one.number("seconds", above=True, most=_MOST_SECONDS)))
        one.done()
    link = StoreLink(
        delay=store.number("delay", 0.001, most=60.0),
        jitter=store.number("jitter", 0.001, most=60.0),
        loss=store.number("loss", 0.0, most=1.0),
        timeout=store.number("timeout", 1.0, above=True, most=60.0),
        outages=tuple(sorted(outages)),
    )
    store.done()
    return link


def _events(table: Table, nodes: int) -> tuple[NodeEvent, ...]:
    """`join` adds a node; the others name one that was there from the start, or has joined."""
    found = []
    for one in table.tables("event"):
        at = one.number("at", most=_MOST_SECONDS)
        what = one.text("what", of=_EVENTS)
        node = -1 if what == "join" else one.whole("node", least=1, most=_MOST_NODES) - 1
        found.append((at, what, node))
        one.done()
    found.sort(key=lambda event: event[0])
    joined = nodes
    events = []
    for at, what, node in found:
        if what == "join":
            node, joined = joined, joined + 1
        elif node >= joined:
            table.wrong("event", f"a node that is there at {at:g} s: node-1 to node-{joined}")
        events.append(NodeEvent(at, what, node))
    return tuple(events)


def _joins(events: tuple[NodeEvent, ...], nodes: int) -> int:
    return len({event.node for event in events if event.node >= nodes})


def _pair(table: Table, key: str, default: tuple[float, float]) -> tuple[float, float]:
    """`delay = 30` or `delay = [10, 40]`."""
    value = table.value(key, list(default))
    pair = value if isinstance(value, list) else [value, value]
    fits = len(pair) == 2 and all(
        isinstance(n, int | float) and not isinstance(n, bool) and 0 <= n <= _MOST_SECONDS
        for n in pair
    )
    if not fits:
        table.wrong(key, "a number of seconds, or two of them in a list")
    return float(pair[0]), float(pair[1])
