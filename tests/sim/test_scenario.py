from pathlib import Path

import pytest

from sluicegate.errors import ConfigError
from sluicegate.sim.scenario import Scenario, load, names, read
from sluicegate.sim.traffic import Cost, Spread

ROWS = [
    "overload-3x",
    "overload-10x",
    "two-resources",
    "small-50",
    "below-limit",
    "moving",
    "hopping",
    "one-per-second",
    "one-per-minute",
    "failover",
    "failover-kill",
    "failover-freeze",
    "failover-cut",
    "rolling-restart",
    "join",
    "death",
    "partition",
    "return",
    "lossy",
    "skewed-clocks",
    "flood",
    "fairness",
    "thin",
    "thin-overload",
    "thin-no-wait",
    "on-and-off",
    "saved-burst",
    "long-requests",
    "newcomer",
    "standstill",
    "apisix",
    "surge",
    *(f"doorman-{number}" for number in range(1, 8)),
]

PLAIN = """
title = "t"
about = "a"
seconds = 20
nodes = 4
centrals = 2
[[limit]]
user = "alice"
requests = 10
[[traffic]]
user = "alice"
rate = 30
"""


def made(more: str = "", *, without: str = "") -> Scenario:
    head, _, tables = PLAIN.partition("[[limit]]")
    lines = [line for line in head.splitlines() if not without or not line.startswith(without)]
    return read("\n".join(lines) + "\n[[limit]]" + tables + more, file="my.toml", name="my")


def test_every_scenario_that_is_shipped_can_be_read() -> None:
    assert set(names()) == set(ROWS)
    for name in names():
        scenario = load(name)
        assert scenario.name == name
        assert scenario.goals
        assert scenario.about.endswith(".")


def test_a_plain_scenario_has_the_defaults() -> None:
    scenario = made()
    assert scenario.nodes == ("node-1", "node-2", "node-3", "node-4")
    assert scenario.centrals == ("central-1", "central-2")
    assert scenario.slot_seconds == 1.0
    assert scenario.warm_up == 10.0
    assert scenario.election_seconds == 2.0
    assert [dict(entry.rates) for entry in scenario.limits] == [{"requests": 10.0}]
    assert scenario.limits[0].service == "front"
    assert scenario.traffic[0].spread == Spread()
    assert not scenario.faults
    assert not scenario.goals


def test_every_key_is_understood() -> None:
    scenario = made(
        """
        nodes = { node-1 = 2, node-2 = 1 }
        arrival = "even"
        cost = { requests = 1, bytes = { mean = 900, tail = 1.5 } }
        duration = 0.5
        cycle = [2, 8]
        [[traffic]]
        user = "user-{}"
        users = 3
        service = "back"
        rate = [[0, 5], [10, 50]]
        ramp = true
        nodes = "hopping"
        stay = [2, 4]
        [[traffic.move]]
        at = 5
        nodes = ["node-2..4"]
        [network]
        delay = 0.1
        loss = 0.2
        kinds = ["report", "ask"]
        [clocks]
        node-2 = { skew = -2, drift = 0.001 }
        [[fault]]
        at = 9
        what = "crash"
        machine = "leader"
        seconds = 3
        disk = false
        [[fault]]
        at = 3
        what = "partition"
        groups = [["node-1..2", "central-1"], ["node-3"]]
        seconds = 4
        [[fault]]
        at = 4
        what = "network"
        late = 0.5
        [[fault]]
        at = 5
        what = "limits"
        limit = [{ user = "alice", requests = 20, burst_seconds = 1 }]
        [goals]
        over_1 = 0.03
        burst = true
        """
    )
    first, *others = scenario.traffic
    assert first.spread.weights == (("node-1", 2.0), ("node-2", 1.0))
    assert first.cost == {"requests": Cost(1.0), "bytes": Cost(900.0, 1.5)}
    assert (first.poisson, first.duration, first.rate.cycle) == (False, 0.5, (2.0, 8.0))
    assert [traffic.user for traffic in others] == ["user-1", "user-2", "user-3"]
    assert others[0].spread.stay == (2.0, 4.0)
    assert others[0].rate.ramp
    assert others[0].moves[0][1].weights == (("node-2", 1.0), ("node-3", 1.0), ("node-4", 1.0))
    assert scenario.network.kinds == {"report", "ask"}
    assert scenario.clocks.skew == {"node-2": -2.0}
    assert [fault.what for fault in scenario.faults] == ["partition", "network", "limits", "crash"]
    assert scenario.faults[0].groups == (("node-1", "node-2", "central-1"), ("node-3",))
    quality = scenario.faults[1].quality
    assert quality is not None
    assert (quality.late, quality.loss) == (0.5, 0.2)
    assert scenario.faults[3].machines == ("leader",)
    assert not scenario.faults[3].disk
    assert (scenario.goals, scenario.burst) == ({"over_1": 0.03}, True)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("colour = 3", "traffic 1: colour = 3: expected no such key; there are"),
        ("[goals]\nover_7 = 1", "goals: over_7 = 1: expected a goal; there are burst, over_1, "),
        ("[goals]\nover_1 = 'x'", "goals: over_1 = 'x': expected a finite number"),
        ("[goals]\nburst = 1", "goals: burst = 1: expected true or false"),
        ("[network]\nloss = 2", "network: loss = 2: expected a finite number of at least 0 and at"),
        ("[network]\nkinds = ['tea']", "expected some of report, ask, ack, quota, election"),
        ("[[fault]]\nwhat = 'flood'\nat = 1", "fault 1: what = 'flood': expected one of crash, "),
        ("[[fault]]\nwhat = 'crash'\nat = 1", "missing key: fault 1: machine"),
        ("[[fault]]\nwhat = 'thaw'\nat = 1\nmachine = 'x'", "expected machines of this cluster"),
        ("[[fault]]\nwhat = 'join'\nat = 1\ndisk = true", "fault 1: disk = True: expected no such"),
        (
            "[[fault]]\nwhat = 'partition'\nat = 1\ngroups = [['node-1'], ['node-1']]",
            "expected groups that have no machine in common",
        ),
        ("nodes = ['node-3..9']", "traffic 1: nodes = ['node-3..9']: expected machines of this"),
        ("nodes = { x = 1 }", "traffic 1: nodes: x = 1: expected machines of this cluster: node-1"),
        ("cost = -1", "traffic 1: cost = -1: expected a finite number above 0"),
        ("cost = { bytes = { mean = 1, tail = 1 } }", "tail = 1: expected a finite number above 1"),
        ("cycle = [0, 1]", "cycle = [0, 1]: expected [on, off] in seconds"),
        ("arrival = 'late'", "arrival = 'late': expected one of even, poisson"),
        ("users = 3", "user = 'alice': expected a string with {} for the number"),
        ("[[limit]]\nuser = 'b'\nrequests = -1", "limit 2: requests = -1: expected a finite"),
        ("[[limit]]\nuser = 'b'", "limit 2: user = 'b': expected a limit that holds: rates must"),
        ("[clocks]\nnode-9 = { skew = 1 }", "clocks: node-9 = {'skew': 1}: expected machines of"),
        ("[clocks]\nnode-1 = { skew = 1e300 }", "skew = 1e+300: expected a finite number"),
        ("[[limit]]\nuser = 'b'\nrequests = 1e300", "requests = 1e+300: expected a finite number"),
        ("[[limit]]\nuser = 'alice'\nrequests = 1", "expected one limit for each user of 'front'"),
        ("cost = 1e300", "cost = 1e+300: expected a finite number above 0 and at most 1e+12"),
        ("duration = 1e300", "duration = 1e+300: expected a finite number"),
        ("nodes = 'node-3..1'", "expected ranges from a lower number to a higher"),
        ("nodes = 'hopping'\nstay = [3, 1]", "stay = [3, 1]: expected [least, most] in seconds"),
        ("[[fault]]\nwhat = 'leave'\nat = 1\nmachine = 'leader'", "not 'leader'"),
        ("[[fault]]\nwhat = 'leave'\nat = 1\nmachine = 'central-1'", "not 'central-1'"),
        ("[[fault]]\nwhat = 'join'\nat = 99", "at = 99: expected before the end, 20 s"),
    ],
)
def test_what_makes_no_sense_is_refused_with_file_key_value_and_what_was_expected(
    text: str, complaint: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        made(text)
    assert str(caught.value).startswith("my.toml: ")
    assert complaint in str(caught.value)


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("seconds = 0", "seconds = 0: expected a finite number above 0"),
        ("seconds = true", "seconds = True: expected a finite number above 0"),
        ("nodes = 0", "nodes = 0: expected an integer from 1 to"),
        ("nodes = ['a', 'a']", "nodes = ['a', 'a']: expected distinct names"),
        ("title = ''", "title = '': expected a string"),
        ("centrals = ['node-2']", "centrals = ['node-2']: expected names that no node has"),
        ("rate = true", "rate = True: expected requests per second"),
        ("rate = 1e300", "rate = 1e+300: expected requests per second"),
    ],
)
def test_wrong_values_at_the_top(line: str, complaint: str) -> None:
    key = line.partition(" ")[0]
    text = "\n".join(line if each.startswith(key) else each for each in PLAIN.splitlines())
    with pytest.raises(ConfigError) as caught:
        read(text, file="my.toml")
    assert complaint in str(caught.value)


def test_a_value_that_must_be_given_is_asked_for() -> None:
    with pytest.raises(ConfigError, match="my.toml: missing key: title"):
        made(without="title")


def test_a_file_that_is_no_toml_says_where() -> None:
    with pytest.raises(ConfigError, match=r"my.toml: invalid TOML: .*line 1"):
        read("nodes = = 3", file="my.toml")


def test_a_name_nobody_knows_brings_the_names_there_are() -> None:
    with pytest.raises(ConfigError, match="there is no scenario 'tango': .* overload-3x"):
        load("tango")


def test_a_file_of_ones_own_is_read_by_its_path(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(PLAIN)
    assert load(str(path)).name == "mine"
    with pytest.raises(ConfigError, match="cannot read"):
        load(str(tmp_path / "other.toml"))


def test_a_shorter_run_leaves_out_what_would_come_later() -> None:
    scenario = made("[[fault]]\nat = 15\nwhat = 'join'")
    assert scenario.lasting(14).faults == ()
    with pytest.raises(ConfigError, match="expected more than the warm-up, 10 s"):
        scenario.lasting(5)


def test_who_joins_must_have_a_name_that_is_free() -> None:
    text = PLAIN.replace("nodes = 4", "nodes = ['a', 'node-3']")
    with pytest.raises(ConfigError, match="names that are free for those who join.*'node-3'"):
        read(text + "[[fault]]\nat = 1\nwhat = 'join'\n", file="my.toml")


def test_a_mark_at_the_beginning_of_a_file_is_no_part_of_it(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(PLAIN, encoding="utf-8-sig")
    assert load(str(path)).title == "t"
