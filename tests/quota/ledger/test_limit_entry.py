"""Limits files, good and bad."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicegate.errors import ConfigError
from sluicegate.quota.ledger.limit_entry import (
    Entry,
    parse_entry,
    read_entries,
    read_tables,
    to_dict,
)

_GOOD = """
[[limit]]
service = "front"
user = "user_foo"
burst_seconds = 10
traffic_up = 1048576000
database_read = 51200

[[limit]]
service = "front"
user = "*"
"reads/second" = 0.5
"""


def test_a_limits_file_is_a_list_of_entries() -> None:
    entries, faults = read_entries(_GOOD)
    assert entries == [
        Entry("front", "user_foo", 10.0, {"traffic_up": 1048576000.0, "database_read": 51200.0}),
        Entry("front", "*", 10.0, {"reads/second": 0.5}),
    ]
    assert faults == []


def test_an_empty_file_has_no_entries() -> None:
    assert read_entries("# nothing yet\n") == ([], [])


@pytest.mark.parametrize(
    ("bad", "fault"),
    [
        ('user = "a"\nreads = 1', "service is missing, expected a name"),
        ('service = "s"\nreads = 1', "user is missing, expected a name"),
        ('service = ""\nuser = "a"\nreads = 1', "service must be a non-empty name, got ''"),
        ('service = "s"\nuser = 7\nreads = 1', "user must be a non-empty name, got 7"),
        ('service = "s"\nuser = "a\\u0007"\nreads = 1', "no control characters, got 'a\\x07'"),
        (f'service = "s"\nuser = "{"a" * 257}"\nreads = 1', "at most 200 bytes of UTF-8, got 257"),
        (
            f'service = "{"é" * 26}"\nuser = "a"\nreads = 1',
            "service must have at most 50 bytes of UTF-8, got 52",
        ),
        ('service = "s"\nuser = "a"', "at least one resource, got none"),
        (
            'service = "s"\nuser = "a"\nreads = -1',
            "reads must be a number from 0 to 1e+15, got -1",
        ),
        ('service = "s"\nuser = "a"\nreads = nan', "from 0 to 1e+15, got nan"),
        ('service = "s"\nuser = "a"\nreads = inf', "from 0 to 1e+15, got inf"),
        ('service = "s"\nuser = "a"\nreads = true', "from 0 to 1e+15, got True"),
        ('service = "s"\nuser = "a"\nreads = "5/s"', "from 0 to 1e+15, got '5/s'"),
        ('service = "s"\nuser = "a"\n"" = 5', "a resource must be a non-empty name"),
        ('service = "s"\nuser = "a"\nreads = 5\nburst_seconds = -1', "burst_seconds must be"),
        ('service = "front"\nuser = "*"\nreads = 5', "got a second one after limit 2"),
    ],
)
def test_a_bad_entry_is_told_and_skipped_and_the_others_hold(bad: str, fault: str) -> None:
    entries, faults = read_entries(f"{_GOOD}\n[[limit]]\n{bad}\n[[limit]]\n{_LAST}")
    assert [entry.user for entry in entries] == ["user_foo", "*", "last"]
    assert len(faults) == 1
    assert faults[0].startswith("limit 3 (service ")
    assert faults[0].endswith("; skipped")
    assert fault in faults[0]


_LAST = 'service = "front"\nuser = "last"\nreads = 1'


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("limit = 5", "limit must be a list of tables, [[limit]], got 5; skipped"),
        ("limit = [5]", "limit 1: a limit must be a table, got 5; skipped"),
        ("limit = []\n[x]\na = 1", "expected only [[limit]] tables, got 'x'; skipped"),
    ],
)
def test_what_is_no_table_of_limits_is_told(text: str, fault: str) -> None:
    assert read_entries(text) == ([], [fault])


def test_a_slip_in_the_one_word_that_counts_lifts_nothing() -> None:
    with pytest.raises(ConfigError, match="expected \\[\\[limit\\]\\] tables, got only 'limits'"):
        read_entries('[[limits]]\nservice = "s"')
    assert read_entries("") == ([], [])


def test_a_file_that_is_no_toml_is_refused_with_the_line() -> None:
    with pytest.raises(ConfigError, match="not valid TOML: .*line 3"):
        read_entries('[[limit]]\nservice = "s"\nuser = \n')


def test_an_entry_checks_itself() -> None:
    assert Entry("s", "u", rates={"reads": 0}).rates == {"reads": 0.0}
    with pytest.raises(ValueError, match="reads must be a number from 0 to 1e\\+15, got inf"):
        Entry("s", "u", rates={"reads": math.inf})
    with pytest.raises(ValueError, match="reads must be a number from 0 to 1e\\+15, got 1000"):
        Entry("s", "u", rates={"reads": 10**400})
    with pytest.raises(ValueError, match="at most 8 resources, got 9"):
        Entry("s", "u", rates={f"r{number}": 1.0 for number in range(9)})
    with pytest.raises(ValueError, match="at least one resource"):
        Entry("s", "u")
    with pytest.raises(ValueError, match="must not be named .*, got 'user'"):
        Entry("s", "u", rates={"user": 1.0})


_NAMES = st.text(st.characters(exclude_categories=["Cc", "Cs"]), min_size=1, max_size=12)
_AMOUNTS = st.floats(0.0, 1e15)
_RESOURCES = _NAMES.filter(lambda name: name not in ("service", "user", "burst_seconds"))


@given(_NAMES, _NAMES, _AMOUNTS, st.dictionaries(_RESOURCES, _AMOUNTS, min_size=1, max_size=8))
def test_a_flat_table_means_the_entry_it_was_made_of(
    service: str, user: str, burst_seconds: float, rates: dict[str, float]
) -> None:
    entry = Entry(service, user, burst_seconds, rates)
    assert parse_entry(to_dict(entry)) == entry
    assert read_tables([entry, to_dict(entry)])[0] == [entry]
