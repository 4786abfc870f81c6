import pytest

from sluicegate import Limit, parse_limits
from sluicegate.limits.limit import as_limits


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        ("10/second", Limit(10, 1)),
        ("10/s", Limit(10, 1)),
        ("10 / Seconds", Limit(10, 1)),
        ("100 per 5 minutes", Limit(100, 300)),
        ("100/5 min", Limit(100, 300)),
        ("1000/hour burst 50", Limit(1000, 3600, 50)),
        ("1000 per hour burst 50.5", Limit(1000, 3600, 50.5)),
        ("0.5/sec", Limit(0.5, 1)),
        ("1e6/day", Limit(1e6, 86400)),
        ("5/250ms", Limit(5, 0.25)),
        ("7 per week", Limit(7, 604800)),
        ("2/1.5h", Limit(2, 5400)),
        ("5 per 2 mins", Limit(5, 120)),
        ("5/10secs", Limit(5, 10)),
    ],
)
def test_a_limit_is_read_from_a_string(text: str, limit: Limit) -> None:
    assert parse_limits(text) == (limit,)


def test_several_are_separated_by_semicolons() -> None:
    assert parse_limits("10/second; 1000/hour burst 50 ;") == (Limit(10, 1), Limit(1000, 3600, 50))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("10/secnd", "unknown unit 'secnd' at column 4 of '10/secnd'"),
        ("10/second; 5/fortnight", "unknown unit 'fortnight' at column 14 of"),
        ("", "expected a number, found the end at column 1 of ''"),
        ("ten/second", "expected a number, found 'ten' at column 1"),
        ("10", "expected '/' or 'per', found the end at column 3"),
        ("10 each second", "expected '/' or 'per', found 'each' at column 4"),
        ("10/", "expected a unit, found the end at column 4"),
        ("10/second burst", "expected a number, found the end at column 16"),
        ("10/second 5/hour", "expected ';' or the end, found '5' at column 11"),
        ("0/second", "expected a finite number above 0, found '0' at column 1"),
        ("-1/second", "expected a number, found '-' at column 1"),
        ("1/0 seconds", "expected a finite number above 0, found '0' at column 3"),
        ("nan/second", "expected a finite number above 0, found 'nan' at column 1"),
        ("1.2.3/second", "expected a number, found '1.2.3' at column 1"),
        ("1/1e308 weeks", "expected a finite duration at column 9 of"),
        (";", "expected a number, found ';' at column 1"),
    ],
)
def test_a_wrong_string_names_the_place(text: str, message: str) -> None:
    with pytest.raises(ValueError) as caught:
        parse_limits(text)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "0.1/second",
        "0.3333333333333333/second",
        "10/second",
        "100/5 minutes",
        "1000/hour burst 50",
        "0.5/day",
        "3/1.5 seconds",
        "1/ms",
    ],
)
def test_a_limit_written_out_reads_back_the_same(text: str) -> None:
    (limit,) = parse_limits(text)
    assert parse_limits(str(limit)) == (limit,)


def test_limits_are_taken_in_every_form() -> None:
    both = (Limit(1, 1), Limit(5, 60))
    assert as_limits(both) == both
    assert as_limits("1/s; 5/min") == both
    assert as_limits(["1/s", Limit(5, 60)]) == both
    assert as_limits(both[0]) == both[:1]
    assert Limit(30, 60).rate == 0.5


@pytest.mark.parametrize(
    ("amount", "per", "burst"),
    [(0, 1, None), (-1, 1, None), (float("nan"), 1, None), (1, 0, None), (1, 1, 0), (1, "x", None)],
)
def test_a_limit_of_nothing_is_refused(amount: float, per: float, burst: float | None) -> None:
    with pytest.raises((ValueError, TypeError), match="got"):
        Limit(amount, per, burst)


def test_what_is_no_limit_is_refused() -> None:
    with pytest.raises(TypeError, match="got 10"):
        as_limits(10)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="got b'1/s'"):
        as_limits(b"1/s")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="must be a string"):
        parse_limits(10)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="at least one"):
        as_limits([])
    with pytest.raises(TypeError, match="must be a number"):
        Limit(None, 1)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="finite"):
        Limit(10**400, 1)
