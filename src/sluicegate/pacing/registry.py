"""`Registry`: the counters and limiters of a cluster by name. No I/O, no threads."""

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Generic, TypeVar, cast

from sluicegate.errors import TableFull
from sluicegate.pacing._counter import ClusterCounter
from sluicegate.pacing._limiter import ClusterLimiter
from sluicegate.pacing.learned_curve import LearnedCurve
from sluicegate.pacing.limiter_control import LimiterControl
from sluicegate.pacing.limiter_options import (
    COUNTERS,
    OWN_COUNTERS,
    SCORED_COUNTERS,
    LimiterOptions,
    check_name,
)
from sluicegate.pacing.schedule import Schedule
from sluicegate.pacing.state import ClusterState, Name

__all__ = ["Family", "Registry"]

_RESERVED_LABELS = ("cluster", "node", "limiter", "counter")  # the metrics have these already

Member = TypeVar("Member", ClusterCounter, ClusterLimiter)


class Family(Generic[Member]):
    """Counters or limiters with one definition, one for each combination of label values."""

    __slots__ = ("_members", "_registry", "label_names", "max_members", "name")

    def __init__(
        self, registry: "Registry", name: str, label_names: tuple[str, ...], max_members: int
    ) -> None:
        self.name = name
        self.label_names = label_names
        self.max_members = max_members
        self._registry = registry
        self._members: dict[tuple[str, ...], Member] = {}

    def labels(self, /, *values: str, **named: str) -> Member:
        """The member with these label values, in order or by name; made at its first use."""
        key = self._in_order(values, named) if named else values
        try:
            member = self._members.get(key)
        except TypeError:  # a list, for one, has no hash; what is wrong is said below
            member = None
        return self._add(key) if member is None else member

    def members(self) -> list[Member]:
        return list(self._members.values())

    def __len__(self) -> int:
        return len(self._members)

    def __repr__(self) -> str:
        return f"Family({self.name!r}, {list(self.label_names)}, members={len(self)})"

    def _in_order(self, values: tuple[str, ...], named: dict[str, str]) -> tuple[str, ...]:
        if values or named.keys() != set(self.label_names):
            raise ValueError(
                f"{self.name!r} has the labels {list(self.label_names)}: give all their values in "
                f"order, or all by name; got {values!r} and {named!r}"
            )
        return tuple(named[label] for label in self.label_names)

    def _add(self, key: tuple[str, ...]) -> Member:
        if len(key) != len(self.label_names):
            raise ValueError(
                f"{self.name!r} has the labels {list(self.label_names)}, got the values {key!r}"
            )
        for label, value in zip(self.label_names, key, strict=True):
            check_name(label, value)
        with self._registry.lock:
            if key not in self._members:
                self._registry.check_family(self)
                if len(self._members) >= self.max_members:
                    raise TableFull(
                        f"{self.name!r} has its {self.max_members} members (max_members) already, "
                        f"no room for {key!r}"
                    )
                member = self._registry.make_member(self, key)
                self._members[key] = cast(Member, member)
            return self._members[key]


class Definition:
    """What a name was defined as."""

    __slots__ = ("family", "label_names", "max_members", "options")

    def __init__(
        self,
        options: "Schedule | LimiterOptions",
        label_names: tuple[str, ...] = (),
        max_members: int = 0,
    ) -> None:
        self.options = options
        self.label_names = label_names
        self.max_members = max_members
        self.family: Family[ClusterCounter] | Family[ClusterLimiter] | None = None

    def differences(self, other: "Definition") -> list[tuple[str, str]]:
        """Each setting that differs, as it is here and there."""
        here, there = self._settings(), other._settings()
        if here["kind"] != there["kind"]:
            return [(f"kind={here['kind']!r}", f"kind={there['kind']!r}")]
        return [
            (f"{name}={here.get(name)!r}", f"{name}={there.get(name)!r}")
            for name in here | there
            if here.get(name) != there.get(name)
        ]

    def _settings(self) -> dict[str, object]:
        kind = "counter" if isinstance(self.options, Schedule) else "limiter"
        settings: dict[str, object] = {
            "kind": kind,
            "labels": self.label_names,
            "max_members": self.max_members,
        }
        return settings | {name: getattr(self.options, name) for name in self.options.__slots__}


class Registry:
    """Makes, changes and removes what a `ClusterState` syncs."""

    def __init__(
        self, state: ClusterState, check_open: Callable[[], object] = lambda: None
    ) -> None:
        self.lock = threading.RLock()
        self._state = state
        self._check_open = check_open  # raises once the cluster is closed
        self._definitions: dict[str, Definition] = {}

    def counter(self, name: str, schedule: Schedule) -> ClusterCounter:
        with self.lock:
            definition = Definition(schedule)
            if self._is_new(name, definition):
                self._make_counter((name, ()), schedule)
                self._definitions[name] = definition
            return self._state.counters[name, ()]

    def limiter(self, name: str, options: LimiterOptions) -> ClusterLimiter:
        with self.lock:
            definition = Definition(options)
            if self._is_new(name, definition):
                self._make_limiter((name, ()), options)
                self._definitions[name] = definition
            return self._state.limiters[name, ()][0]

    def family(
        self,
        name: str,
        options: Schedule | LimiterOptions,
        labels: list[str] | tuple[str, ...],
        max_members: int,
    ) -> Family[ClusterCounter] | Family[ClusterLimiter]:
        with self.lock:
            definition = Definition(options, _label_names(labels), max_members)
            if self._is_new(name, definition):
                definition.family = Family(self, name, definition.label_names, max_members)
                self._definitions[name] = definition
            family = self._definitions[name].family
            assert family is not None
            return family

    def redefine(self, name: str, options: LimiterOptions) -> bool:
        """Change a limiter in its place; whether it differs. Whoever has the object keeps it."""
        with self.lock:
            definition = self._definitions[name]
            if definition.options == options:
                return False
            before = definition.options
            assert isinstance(before, LimiterOptions)
            limiter, control = self._state.limiters[name, ()]
            if _without_target(before) == _without_target(options):
                limiter.target = options.target
                definition.options = options
                return True
            counters = limiter._counters
            schedule = options.schedule()
            self._control(options, schedule)  # it raises, if ever, before anything is changed
            control.is_over = True
            if before.schedule() != schedule or before.scored != options.scored:
                self._state.retire(counters)
                counters = self._limiter_counters((name, ()), schedule, is_scored=options.scored)
            definition.options = options
            self._equip(limiter, options, counters)
            return True

    def find_limiter(self, name: str) -> ClusterLimiter | None:
        """The limiter of a name, without labels."""
        found = self._state.limiters.get((name, ()))
        return None if found is None else found[0]

    def revive(self, limiter: ClusterLimiter, options: LimiterOptions) -> None:
        """Let a limiter that was removed go on, with a new definition."""
        key = (limiter.name, limiter.label_values)
        with self.lock:
            definition = Definition(options)
            if self._is_new(limiter.name, definition):
                schedule = options.schedule()
                self._control(options, schedule)
                counters = self._limiter_counters(key, schedule, is_scored=options.scored)
                self._equip(limiter, options, counters)
                self._definitions[limiter.name] = definition

    def __contains__(self, name: str) -> bool:
        return name in self._definitions

    def remove(self, name: str) -> None:
        """Forget a counter, a limiter or a family. Its limiters let nothing pass any more."""
        with self.lock:
            if name not in self._definitions:
                raise KeyError(f"no counter, limiter or family is named {name!r}")
            del self._definitions[name]
            for key in [key for key in self._state.counters if key[0] == name]:
                self._state.retire([self._state.counters.pop(key)])
            for key in [key for key in self._state.limiters if key[0] == name]:
                limiter, control = self._state.limiters.pop(key)
                control.is_over = True
                limiter._end()
                self._state.retire(limiter._counters)
                self._drop_curve(key)

    def check_family(self, family: "Family[Member]") -> None:
        """Raise if the family was removed, or the cluster is closed."""
        self._check_open()
        definition = self._definitions.get(family.name)
        if definition is None or definition.family is not family:
            raise KeyError(f"the family {family.name!r} was removed")

    def make_member(
        self, family: "Family[Member]", label_values: tuple[str, ...]
    ) -> ClusterCounter | ClusterLimiter:
        """A new member of a family."""
        name = family.name
        definition = self._definitions[name]
        if isinstance(definition.options, Schedule):
            return self._make_counter((name, label_values), definition.options)
        return self._make_limiter((name, label_values), definition.options)

    def labels_of(self, kind: str, key: Name) -> dict[str, str]:
        """The labels of a counter or limiter in the metrics."""
        name, values = key
        definition = self._definitions.get(name)
        label_names = definition.label_names if definition is not None else ()
        return {kind: name} | dict(zip(label_names, values, strict=False))

    def begin_anew(self) -> None:
        """In a forked child: plans of its own, for counters that begin at zero."""
        self.lock = threading.RLock()
        for (name, _), (limiter, _) in list(self._state.limiters.items()):
            definition = self._definitions.get(name)  # None: it was being removed
            if definition is not None and isinstance(definition.options, LimiterOptions):
                options = replace(definition.options, target=limiter.target)
                self._equip(limiter, options, limiter._counters)

    def _is_new(self, name: str, definition: Definition) -> bool:
        """Whether the name is free. Raises if it is another definition's."""
        check_name("name", name)
        if name.endswith(tuple(f":{kind}" for kind in OWN_COUNTERS)):
            raise ValueError(
                f"name must not end with :{', :'.join(OWN_COUNTERS)}, as the counters of a limiter "
                f"do, got {name!r}"
            )
        known = self._definitions.get(name)
        differences = [] if known is None else known.differences(definition)
        if differences:
            here, there = (", ".join(texts) for texts in zip(*differences, strict=True))
            raise ValueError(
                f"{name!r} is defined already, with {here}: remove it first, got {there}"
            )
        return known is None

    def _make_counter(self, key: Name, schedule: Schedule) -> ClusterCounter:
        counter = self._state.own_counter(key, schedule)
        self._state.counters[key] = counter
        return counter

    def _make_limiter(self, key: Name, options: LimiterOptions) -> ClusterLimiter:
        schedule = options.schedule()
        control = self._control(options, schedule)
        counters = self._limiter_counters(key, schedule, is_scored=options.scored)
        try:
            limiter = ClusterLimiter(
                *key, self._state.clock, control, options.scores(), options.explore, counters
            )
            self._start(key, limiter, control, options)
        except BaseException:
            self._drop_curve(key)
            self._state.retire(counters)  # one that was here before may have more to tell
            raise
        return limiter

    def _equip(
        self,
        limiter: ClusterLimiter,
        options: LimiterOptions,
        counters: tuple[ClusterCounter, ...],
    ) -> None:
        """Give a limiter a new plan."""
        control = self._control(options, options.schedule())
        limiter._define(control, options.scores(), options.explore, counters)
        self._start((limiter.name, limiter.label_values), limiter, control, options)

    def _start(
        self, key: Name, limiter: ClusterLimiter, control: LimiterControl, options: LimiterOptions
    ) -> None:
        if options.curve == "learn":
            if key not in self._state.curves:
                self._state.curves[key] = LearnedCurve(
                    key, self._state.clock, self._state.own_counter
                )
            self._state.curves[key].guide(limiter, control.steering)
        else:
            self._drop_curve(key)
        self._state.limiters[key] = (limiter, control)

    def _drop_curve(self, key: Name) -> None:
        curve = self._state.curves.pop(key, None)
        if curve is not None:
            self._state.retire(curve.counters())

    def _control(self, options: LimiterOptions, schedule: Schedule) -> LimiterControl:
        state = self._state
        return LimiterControl(
            options.steering(schedule),
            state.clock,
            state.sync_interval,
            state.live_for,
            lambda: state.nodes,
            state.ask_for_sync,
        )

    def _limiter_counters(
        self, key: Name, schedule: Schedule, *, is_scored: bool
    ) -> tuple[ClusterCounter, ...]:
        name, label_values = key
        kinds = [*COUNTERS, *SCORED_COUNTERS] if is_scored else COUNTERS
        counters = tuple(
            self._state.own_counter((f"{name}:{kind}", label_values), schedule, turns_itself=False)
            for kind in kinds
        )
        counters[0]._share_guess(1.0 / self._state.nodes)
        return counters


def _without_target(options: LimiterOptions) -> list[object]:
    return [getattr(options, name) for name in options.__slots__ if name != "target"]


def _label_names(labels: list[str] | tuple[str, ...]) -> tuple[str, ...]:
    if isinstance(labels, str) or not isinstance(labels, list | tuple) or not labels:
        raise TypeError(f"labels must be a list of names, such as ['country'], got {labels!r}")
    for name in labels:
        is_text = isinstance(name, str) and name.isidentifier() and name.isascii()
        if not is_text or name.startswith("__"):
            raise ValueError(
                "labels must be ASCII identifiers that do not begin with __ (Prometheus keeps "
                f"these for itself), got {name!r} in {labels!r}"
            )
        if name in _RESERVED_LABELS:
            raise ValueError(
                f"labels must not be {', '.join(_RESERVED_LABELS)}: the metrics use these names, "
                f"got {name!r}"
            )
    if len(set(labels)) < len(labels):
        raise ValueError(f"labels must differ, got {labels!r}")
    return tuple(labels)
