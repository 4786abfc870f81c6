"""Tests that hang, between others. test_hanging.py shows that they fail alone."""

import threading


def test_before() -> None:
    pass


def test_waits_for_ever() -> None:
    print("seen so far")  # noqa: T201
    threading.Event().wait()


def test_hangs_in_compiled_code() -> None:
    sum(range(10**13))


def test_after() -> None:
    pass
