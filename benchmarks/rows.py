"""Subjects that call something for a key, and rows that compare two times."""

from typing import Any

from benchmarks.harness import Row, Subject, Times

__all__ = ["call", "empty", "faster", "slower"]


class Empty:
    def method(self) -> None:
        pass


def call(statement: str, **names: Any) -> Subject:
    return Subject(statement, {"key": "user:1234", **names})


def empty() -> Subject:
    return call("empty.method()", empty=Empty())


def slower(what: str, times: dict[str, Times], peer: str, most: float | None, name: str) -> Row:
    """A row that says how many times the peer's thread time ours takes."""
    ours, theirs = times["ours"].thread, times[peer].thread
    goal = "" if most is None else f"<= {most:g} x"
    met = None if most is None else ours <= theirs * most
    ratio = ours / theirs
    return Row(
        what, f"{ours:.0f} ns", f"{theirs:.0f} ns ({name})", ratio, f"{ratio:.2f} x", goal, met
    )


def faster(what: str, times: dict[str, Times], peer: str, least: float | None, name: str) -> Row:
    """A row that says how many times faster than the peer we are."""
    ours, theirs = times["ours"].thread, times[peer].thread
    goal = "" if least is None else f">= {least:g} x faster"
    met = None if least is None else theirs >= ours * least
    ratio = theirs / ours
    text = f"{ratio:.1f} x faster"
    return Row(what, f"{ours:.0f} ns", f"{theirs:.0f} ns ({name})", ratio, text, goal, met)
