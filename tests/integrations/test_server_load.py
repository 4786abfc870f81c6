"""The header that reports a server's load: what others write, and what nobody should."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicegate.integrations.server_load import load_report, reported_load


@pytest.mark.parametrize(
    ("value", "load"),
    [
        ("TEXT named_metrics.in_flight=7", 7.0),
        ("TEXT cpu_utilization=0.3, named_metrics.in_flight=7", 7.0),
        ("TEXT named_metrics.in_flight=7,cpu_utilization=0.3", 7.0),
        ("TEXT named_metrics.in_flight:2.5", 2.5),  # as Envoy separates them
        ("TEXT named_metrics.in_flight=1e2", 100.0),
        ("  TEXT named_metrics.in_flight= 0 ", 0.0),
        ('JSON {"cpu_utilization": 0.3, "named_metrics": {"in_flight": 7}}', 7.0),
        ('JSON {"namedMetrics": {"in_flight": 0.5}}', 0.5),
    ],
)
def test_the_requests_in_progress_are_read(value: str, load: float) -> None:
    assert reported_load(value) == load


@pytest.mark.parametrize(
    "value",
    [
        None,
        "",
        "TEXT",
        "JSON",
        "TEXT cpu_utilization=0.3",
        "TEXT in_flight=7",
        "TEXT other_named_metrics.in_flight=7",
        "TEXT named_metrics.in_flight=7, named_metrics.in_flight=8",
        "TEXT named_metrics.in_flight=-7",
        "TEXT named_metrics.in_flight=nan",
        "TEXT named_metrics.in_flight=inf",
        "TEXT named_metrics.in_flight=1e999",
        "TEXT named_metrics.in_flight=1_0",
        "TEXT named_metrics.in_flight=\u0667",
        "TEXT named_metrics.in_flight=7 8",
        "named_metrics.in_flight=7",
        "text named_metrics.in_flight=7",
        "BIN CAE=",
        "JSON 7",
        "JSON [7]",
        'JSON {"named_metrics": 7}',
        'JSON {"named_metrics": {"in_flight": true}}',
        'JSON {"named_metrics": {"in_flight": "7"}}',
        'JSON {"named_metrics": {"in_flight": -1}}',
        'JSON {"named_metrics": {"in_flight": NaN}}',
        'JSON {"named_metrics": {"in_flight": 1' + "0" * 400 + "}}",
        "JSON " + "[" * 4000,
        "TEXT named_metrics.in_flight=7" + " " * 5000,
        "TEXT named_metrics.in_flight=7," + "x" * 5000,
    ],
)
def test_what_cannot_be_read_is_ignored(value: str | None) -> None:
    assert reported_load(value) is None


@given(
    st.sampled_from(["", "TEXT ", "JSON ", "TEXT named_metrics.in_flight="]),
    st.text(max_size=200)
    | st.recursive(
        st.none() | st.floats() | st.integers() | st.text(),
        lambda inner: st.dictionaries(st.sampled_from(["named_metrics", "in_flight"]), inner),
    ).map(json.dumps),
)
def test_no_header_makes_it_raise(prefix: str, rest: str) -> None:
    load = reported_load(prefix + rest)
    assert load is None or 0.0 <= load < math.inf


@given(st.integers(0, 10**9))
def test_what_the_middlewares_write_is_read(in_flight: int) -> None:
    assert reported_load(load_report(in_flight)) == in_flight
