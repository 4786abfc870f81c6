"""Our Prometheus text, as Prometheus's own parser reads it."""

import math

from prometheus_client.parser import text_string_to_metric_families

from sluicegate._prometheus import family, histogram


def parse(lines: list[str]) -> dict[tuple[str, tuple[str, ...]], float]:
    text = "\n".join(lines) + "\n"
    return {
        (sample.name, tuple(sample.labels.values())): sample.value
        for metric in text_string_to_metric_families(text)
        for sample in metric.samples
    }


def test_values_and_labels_come_back_as_they_were() -> None:
    odd = 'a "quoted" \\ text\nof two lines'
    lines = family("calls_total", "counter", "Calls", [({"queue": odd}, 3), ({"queue": "b"}, 0.1)])
    assert parse(lines) == {("calls_total", (odd,)): 3.0, ("calls_total", ("b",)): 0.1}
    lines = family("age", "gauge", "Age", [({}, math.inf)])
    assert parse(lines) == {("age", ()): math.inf}


def test_a_family_without_values_is_left_out() -> None:
    assert family("age", "gauge", "Age", []) == []
    assert histogram("age", "Age", []) == []


def test_each_bucket_of_a_histogram_has_all_values_up_to_its_bound() -> None:
    lines = histogram("size", "Sizes", [({"queue": "a"}, (1, 2.5), (4, 0, 3), 37.5)])
    assert lines[:2] == ["# HELP size Sizes", "# TYPE size histogram"]
    assert parse(lines) == {
        ("size_bucket", ("a", "1")): 4,
        ("size_bucket", ("a", "2.5")): 4,
        ("size_bucket", ("a", "+Inf")): 7,
        ("size_sum", ("a",)): 37.5,
        ("size_count", ("a",)): 7,
    }
