"""The table and the page of a cache trace, where there is little or much to show."""

import itertools
import re

import pytest

from sluicegate.cache import POLICIES, Trace, replay
from sluicegate.sim.cache_report import CacheReport
from sluicegate.sim.cache_traces import zipf


def report(keys: list[int], capacities: list[int | float], *policies: str) -> CacheReport:
    trace = Trace(keys)
    return CacheReport("t.txt", trace, replay(trace, policies or None, capacities))


def labels(page: str, figure: str) -> dict[str, float]:
    """The policies' names in a chart, and their heights."""
    chart = page.split(f'<figure class="{figure}">')[1].split("</figure>")[0]
    found = re.findall(r'<text class="(\w+)" x="\d+" y="([\d.]+)">', chart)
    return {name: float(y) for name, y in found}


@pytest.mark.parametrize("capacities", [[1], [5, 50], [1, 10, 100, 400, 1000]])
@pytest.mark.parametrize("figure", ["wide", "narrow"])
def test_labels_do_not_overlap_and_are_in_the_order_of_the_lines(
    capacities: list[int | float], figure: str
) -> None:
    shown = report(list(zipf(5_000, 500)), capacities)
    found = labels(shown.page(), figure)
    assert sorted(found) == sorted([*POLICIES, "optimal"])
    heights = sorted(found.values())
    assert all(below - above >= 13.9 for above, below in itertools.pairwise(heights))
    last = {policy: row[-1].hits for policy, row in shown.rows.items()}
    by_height = [last[name] for name in sorted(found, key=lambda name: found[name])]
    assert by_height == sorted(by_height, reverse=True)


def test_where_all_policies_are_alike_none_is_marked() -> None:
    shown = report([1, 2, 3, 1, 2, 3], [3])
    assert "*" not in shown.plain()
    assert "**" not in shown.markdown()
    assert "class=best" not in shown.page()


def test_a_trace_without_a_hit_has_a_page() -> None:
    page = report(list(range(100)), [10, 0.5], "lru").page()
    assert ">0 %</text>" in page
    assert "nan" not in page


def test_names_in_the_page_are_text() -> None:
    trace = Trace([1, 2, 1])
    page = CacheReport("<b>.txt", trace, replay(trace, ["lru"], [1])).page()
    assert "<b>" not in page
    assert "&lt;b&gt;.txt: 3 requests" in page


def test_capacities_are_shown_as_parts_of_the_keys() -> None:
    shown = report(list(range(10_000)), [1, 10, 12, 5_000, 20_000], "fifo")
    assert re.findall(r"[\d.]+ %", shown.plain().splitlines()[3]) == [
        "0.01 %",
        "0.1 %",
        "0.1 %",
        "50 %",
        "200 %",
    ]
