"""The calls of a client, in virtual time."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicegate.dispatch.client_core import GRACE, Call, ClientCore
from sluicegate.dispatch.errors import Busy, Duplicate, HandlerFailed, NoWorkers, TimedOut
from sluicegate.dispatch.messages import (
    BUSY,
    DUPLICATE,
    NO_WORKERS,
    Cancelled,
    Enqueued,
    Outgoing,
)
from sluicegate.dispatch.wire import FAILED, OK, TIMED_OUT, Response
from sluicegate.errors import Unavailable

Core = ClientCore[str]


def begin(core: Core, name: str, *, now: float = 0.0, timeout: float = 1.0) -> Call[str]:
    call = Call(name, Outgoing(1, b"", b""), "key", now, now + timeout, name)
    core.add(call)
    return call


def accept(core: Core, *calls: Call[str]) -> None:
    reply = Enqueued(len(calls), 100, [b"%d-0" % place for place in range(len(calls))])
    assert core.enqueued(list(calls), reply) == ([], [])


def test_a_call_ends_with_its_response_and_ignores_the_next() -> None:
    core = Core("q")
    call = begin(core, "a")
    accept(core, call)
    assert core.respond(Response("a", OK, 42)) == ("a", 42, None)
    assert core.respond(Response("a", OK, 43)) is None
    assert core.waiting == 0
    assert core.next_deadline() is None


def test_a_response_may_come_before_redis_has_confirmed_the_request() -> None:
    core = Core("q")
    call = begin(core, "a")
    assert core.respond(Response("a", OK, 1)) == ("a", 1, None)
    accept(core, call)


def test_refusals_have_their_reasons() -> None:
    core = Core("q")
    calls = [begin(core, name) for name in "abcd"]
    reply = Enqueued(7, 5, [BUSY, DUPLICATE, NO_WORKERS, b"1-0"])
    outcomes, cancel = core.enqueued(calls, reply)
    busy, duplicate, no_workers = [one.error for one in outcomes]
    assert isinstance(busy, Busy)
    assert (busy.length, busy.limit) == (7, 5)
    assert isinstance(duplicate, Duplicate)
    assert isinstance(no_workers, NoWorkers)
    assert cancel == []
    assert core.waiting == 1


@pytest.mark.parametrize(
    ("response", "kind"),
    [
        (Response("a", TIMED_OUT, {"waited": 0.5, "ran": 0.25}), TimedOut),
        (Response("a", TIMED_OUT), TimedOut),
        (Response("a", FAILED, {"error": "ValueError: no"}), HandlerFailed),
        (Response("a", FAILED, "from another language"), HandlerFailed),
        (Response("a", 503, {"length": 3, "limit": 2}), Busy),
        (Response("a", 503, {"length": "many", "limit": float("inf")}), Busy),
        (Response("a", TIMED_OUT, {"waited": 10**400, "ran": float("nan")}), TimedOut),
        (Response("a", 77), HandlerFailed),
    ],
)
def test_errors_of_responses(response: Response, kind: type[Exception]) -> None:
    core = Core("q")
    begin(core, "a")
    outcome = core.respond(response)
    assert outcome is not None
    assert isinstance(outcome.error, kind)


@pytest.mark.parametrize(
    ("data", "left", "message"),
    [
        (
            {"waited": 0.25, "ran": 0.0, "needed": 0.9},
            0.75,
            "queue 'q' did not run a request: 0.750 s were left after it had waited 0.250 s, "
            "about 0.900 s were needed",
        ),
        (
            {"waited": 0.25, "ran": 0.0},
            0.75,
            "queue 'q' did not run a request: 0.750 s were left after it had waited 0.250 s, "
            "too little",
        ),
        (
            {"waited": 1.25, "ran": 0.0},
            0.0,
            "no answer from queue 'q' in time: waited 1.250 s, with a worker for 0.000 s",
        ),
        (None, 0.0, "no answer from queue 'q' in time: waited 0.000 s, with a worker for 0.000 s"),
    ],
)
def test_a_request_that_a_worker_dropped_says_why(data: Any, left: float, message: str) -> None:
    core = Core("q")
    begin(core, "a")
    outcome = core.respond(Response("a", TIMED_OUT, data))
    assert outcome is not None
    assert isinstance(outcome.error, TimedOut)
    assert (outcome.error.left, str(outcome.error)) == (left, message)


def test_a_drained_queue_says_so() -> None:
    core = Core("q")
    (outcome,), _ = core.enqueued([begin(core, "a")], Enqueued(3, 0, [BUSY]))
    assert str(outcome.error) == (
        "queue 'q' is being drained and accepts no new requests: 3 are waiting or running"
    )


def test_at_its_deadline_a_call_is_cancelled_and_learns_where_the_time_went() -> None:
    core = Core("q")
    calls = [begin(core, name) for name in "abc"]
    accept(core, *calls)
    assert core.next_deadline() == 1.0
    assert core.expire(0.9, None) == ([], [])
    outcomes, cancel = core.expire(1.0, None)
    assert outcomes == []
    assert cancel == calls
    waiting, running = core.cancelled(
        1.01, calls, [Cancelled(1, 0.0), Cancelled(2, 0.75), Cancelled(0, 0.0)]
    )
    assert isinstance(waiting.error, TimedOut)
    assert (waiting.error.waited, waiting.error.ran) == pytest.approx((1.01, 0.0))
    assert isinstance(running.error, TimedOut)
    assert (running.error.waited, running.error.ran) == pytest.approx((0.26, 0.75))
    # The third had ended before: its response is on its way, and still counts.
    assert core.respond(Response("c", OK, 3)) == ("c", 3, None)


def test_a_call_that_redis_does_not_cancel_ends_after_the_grace() -> None:
    core = Core("q")
    call = begin(core, "a")
    accept(core, call)
    core.expire(1.0, None)
    assert core.next_deadline() == 1.0 + GRACE
    (outcome,), cancel = core.expire(1.0 + GRACE, None)
    assert isinstance(outcome.error, TimedOut)
    assert cancel == []


def test_a_call_that_redis_never_accepted_is_unavailable_and_cancelled_if_it_was_after_all() -> (
    None
):
    core = Core("q")
    call = begin(core, "a")
    assert core.expire(1.0, None) == ([], [])
    (outcome,), cancel = core.expire(1.0 + GRACE, None)
    assert isinstance(outcome.error, Unavailable)
    assert cancel == []
    assert core.enqueued([call], Enqueued(1, 9, [b"5-0"])) == ([], [call])
    assert call.task == (1, b"5-0")


def test_a_call_too_short_for_one_exchange_with_redis_times_out() -> None:
    core = Core("q")
    call = begin(core, "a", timeout=0.0001)
    assert core.expire(0.0001, None) == ([], [])
    assert core.enqueued([call], Enqueued(1, 9, [b"5-0"])) == ([], [call])
    (outcome,) = core.cancelled(0.001, [call], [Cancelled(1, 0.0)])
    assert isinstance(outcome.error, TimedOut)
    assert core.next_deadline() is None


def test_while_redis_is_away_calls_end_as_unavailable() -> None:
    core = Core("q")
    accept(core, begin(core, "a"))
    (outcome,), cancel = core.expire(1.0, Unavailable("gone"))
    assert isinstance(outcome.error, Unavailable)
    assert cancel == []


def test_a_caller_that_gives_up_cancels_its_request() -> None:
    core = Core("q")
    known, unknown, ended = (begin(core, name) for name in "abc")
    accept(core, known)
    core.respond(Response("c", OK))
    assert core.give_up(known)
    assert not core.give_up(unknown)
    assert not core.give_up(ended)
    assert core.enqueued([unknown], Enqueued(1, 9, [b"5-0"])) == ([], [unknown])
    assert core.waiting == 0


def test_calls_that_could_not_be_sent_fail_each_with_an_error_of_its_own() -> None:
    core = Core("q")
    calls = [begin(core, name) for name in "ab"]
    first, second = core.failed(calls, Unavailable("gone"))
    assert str(first.error) == str(second.error) == "gone"
    assert first.error is not second.error
    assert core.close(Unavailable("closed")) == ([], [])


def test_to_close_ends_all_calls_and_cancels_those_that_redis_has_or_will_have() -> None:
    core = Core("q")
    queued, sent = (begin(core, name) for name in "ab")
    accept(core, queued)
    outcomes, cancel = core.close(Unavailable("closed"))
    assert [(one.waiter, str(one.error)) for one in outcomes] == [("a", "closed"), ("b", "closed")]
    assert cancel == [queued]
    assert core.enqueued([sent], Enqueued(2, 9, [b"5-0"])) == ([], [sent])
    assert core.waiting == 0


def test_deadlines_of_ended_calls_do_not_pile_up() -> None:
    core = Core("q")
    for number in range(10_000):
        begin(core, str(number), timeout=3600.0)
        core.respond(Response(str(number), OK))
    assert len(core._deadlines) < 2000


EVENTS = st.sampled_from(
    ["begin", "accept", "refuse", "fail", "respond", "expire", "cancelled", "give_up", "close"]
)


@given(st.lists(st.tuples(EVENTS, st.integers(0, 9), st.floats(0.0, 0.7)), max_size=80))
def test_every_call_ends_exactly_once(events: list[tuple[str, int, float]]) -> None:
    core = Core("q")
    calls: list[Call[str]] = []
    sent: list[Call[str]] = []
    ended: list[str] = []
    now = 0.0

    def note(outcomes: Any) -> None:
        ended.extend(one.waiter for one in outcomes if one is not None)

    for event, number, pause in events:
        now += pause
        call = calls[number % len(calls)] if calls else None
        if event == "begin":
            calls.append(begin(core, str(len(calls)), now=now, timeout=0.5))
            sent.append(calls[-1])
        elif event in ("accept", "refuse", "fail") and sent:
            one = sent.pop()
            if event == "fail":
                note(core.failed([one], Unavailable("gone")))
            else:
                result = BUSY if event == "refuse" else b"%d-0" % number
                note(core.enqueued([one], Enqueued(1, 1, [result]))[0])
        elif call is None:
            continue
        elif event == "respond":
            note([core.respond(Response(call.correlation_id, OK))])
        elif event == "expire":
            outcomes, cancel = core.expire(now, None)
            note(outcomes)
            assert all(one.id is not None for one in cancel)
        elif event == "cancelled":
            note(core.cancelled(now, [call], [Cancelled(number % 3, 0.1)]))
        elif event == "give_up" and call.correlation_id not in ended:
            core.give_up(call)
            ended.append(call.correlation_id)
        elif event == "close":
            note(core.close(Unavailable("closed")).outcomes)
        deadline = core.next_deadline()
        assert (deadline is not None) == (core.waiting > 0)
    for at in (now + 1.0, now + 1.0 + GRACE):
        note(core.expire(at, None).outcomes)
    assert sorted(ended) == sorted(call.correlation_id for call in calls)
    assert core.waiting == 0
