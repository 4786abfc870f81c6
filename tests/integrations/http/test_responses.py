"""What the client is told, field by field."""

import json
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicegate import Decision, Keyed, Limit, ManualClock
from sluicegate.integrations import Rule
from sluicegate.integrations.http.gate import Gate
from sluicegate.integrations.http.policy import Policy, as_string
from sluicegate.integrations.http.request import ScopeRequest
from sluicegate.integrations.http.responses import ResponseBuilder, fields_to_add
from sluicegate.integrations.server_backoff import requested_pause

MakeRequest = Callable[..., ScopeRequest]


def told(gate: Gate, request: ScopeRequest, **options: bool) -> dict[str, str]:
    return dict(ResponseBuilder(**options).fields(gate.decide(request)))


def test_half_used_reads_as_the_draft_has_it(make_request: MakeRequest, clock: ManualClock) -> None:
    keyed = Keyed("100/minute", clock=clock)
    gate = Gate([Rule(keyed, name="api", cost=50)], in_event_loop=False)
    assert told(gate, make_request(), headers=True) == {
        "RateLimit-Policy": '"api";q=100;w=60',
        "RateLimit": '"api";r=50;t=30',
    }
    told(gate, make_request())
    clock.advance(0.1)
    assert told(gate, make_request()) == {
        "Retry-After": "30",
        "RateLimit-Policy": '"api";q=100;w=60',
        "RateLimit": '"api";r=0;t=30',
    }


def test_retry_after_is_rounded_up_and_at_least_a_second(
    make_request: MakeRequest, clock: ManualClock
) -> None:
    for limit, seconds in (("100/second", "1"), ("1/5 s", "5"), ("2/3 s", "2")):
        gate = Gate([Rule(Keyed(limit, clock=clock))], in_event_loop=False)
        while gate.decide(make_request()).refused is None:
            pass
        assert told(gate, make_request())["Retry-After"] == seconds


def test_with_nothing_left_t_is_the_time_until_one_is_there(
    make_request: MakeRequest, clock: ManualClock
) -> None:
    bucket = Gate([Rule(Keyed("6/minute", clock=clock), name="b", cost=6)], in_event_loop=False)
    assert told(bucket, make_request(), headers=True)["RateLimit"] == '"b";r=0;t=10'
    window = Keyed("6/minute", algorithm="fixed_window", clock=clock)
    fixed = Gate([Rule(window, name="w", cost=6)], in_event_loop=False)
    assert told(fixed, make_request(), headers=True)["RateLimit"] == '"w";r=0;t=60'


def test_several_rules_are_one_list_and_shadows_are_not_in_it(
    make_request: MakeRequest, clock: ManualClock
) -> None:
    gate = Gate(
        [
            Rule(Keyed("10/second", clock=clock), name="burst"),
            Rule(Keyed("1000/day", clock=clock), name="daily"),
            Rule(Keyed("1/day", clock=clock), name="planned", shadow=True),
        ],
        in_event_loop=False,
    )
    first = told(gate, make_request(), headers=True, shadow_header=True)
    assert first["RateLimit-Policy"] == '"burst";q=10;w=1, "daily";q=1000;w=86400'
    assert first["RateLimit"] == '"burst";r=9;t=1, "daily";r=999;t=87'
    assert "X-RateLimit-Shadow" not in first
    second = told(gate, make_request(), headers=True, shadow_header=True)
    assert second["X-RateLimit-Shadow"] == "planned"
    assert "planned" not in second["RateLimit-Policy"] + second["RateLimit"]
    assert told(gate, make_request()) == {}


def test_several_limits_of_a_rule_are_told_apart_by_their_time(
    make_request: MakeRequest, clock: ManualClock
) -> None:
    keyed = Keyed("10/second; 12/hour", clock=clock)
    gate = Gate([Rule(keyed, name="api", cost=5)], in_event_loop=False)
    first = told(gate, make_request(), headers=True)
    assert first["RateLimit-Policy"] == '"api-1s";q=10;w=1, "api-3600s";q=12;w=3600'
    assert first["RateLimit"] == '"api-1s";r=5;t=1'
    clock.advance(10)
    assert told(gate, make_request(), headers=True)["RateLimit"].startswith('"api-3600s";r=2;')
    twice = Policy("x", Keyed([Limit(1, 1), Limit(2, 1)]))
    assert twice.text == '"x-1s";q=1;w=1, "x-1s-2";q=2;w=1'


def test_a_key_with_a_limit_of_its_own_is_told_that_one(
    make_request: MakeRequest, clock: ManualClock
) -> None:
    keyed = Keyed("10/second", clock=clock)
    keyed.override("203.0.113.7", "500/minute")
    gate = Gate([Rule(keyed, name="api")], in_event_loop=False)
    assert told(gate, make_request(), headers=True) == {
        "RateLimit-Policy": '"api";q=500;w=60',
        "RateLimit": '"api";r=499;t=1',
    }


@pytest.mark.parametrize(
    ("limit", "item"),
    [
        ("10/100 ms", '"x";q=100;w=1'),
        ("0.5/second", '"x";q=1;w=2'),
        ("1/1.5 s", '"x";q=1;w=2'),
        ("3/1.5 s", '"x";q=4;w=2'),
        ("100/minute burst 500", '"x";q=100;w=60'),
        (Limit(5e15, 1), '"x";q=999999999999999;w=1'),
    ],
)
def test_policies_are_whole_numbers(limit: str | Limit, item: str) -> None:
    assert Policy("x", Keyed(limit)).text == item


def test_names_are_escaped_and_only_what_a_field_can_hold() -> None:
    assert as_string('a"b\\c') == '"a\\"b\\\\c"'
    with pytest.raises(ValueError, match="printable ASCII"):
        as_string("a\nb")


def test_the_older_fields_speak_of_the_tightest_rule_in_seconds_from_now(
    make_request: MakeRequest, clock: ManualClock
) -> None:
    gate = Gate(
        [
            Rule(Keyed("100/minute", clock=clock), name="wide"),
            Rule(Keyed("2/minute", clock=clock), name="narrow"),
        ],
        in_event_loop=False,
    )
    expected = {"X-RateLimit-Limit": "2", "X-RateLimit-Remaining": "1", "X-RateLimit-Reset": "30"}
    assert told(gate, make_request(), x_headers=True) == expected
    told(gate, make_request())
    refused = told(gate, make_request(), x_headers=True)
    assert refused["X-RateLimit-Remaining"] == "0"
    assert refused["X-RateLimit-Reset"] == refused["Retry-After"] == "30"


def test_a_refusal_is_a_problem_of_the_type_that_the_draft_defines(
    make_request: MakeRequest, clock: ManualClock
) -> None:
    gate = Gate([Rule(Keyed("1/minute", clock=clock), name='a"b')], in_event_loop=False)
    gate.decide(make_request())
    verdict = gate.decide(make_request())
    assert verdict.refused is not None
    refusal = ResponseBuilder().refusal(verdict, "GET")
    assert ("Content-Type", "application/problem+json") in refusal.fields
    assert ("Content-Length", str(len(refusal.body))) in refusal.fields
    assert json.loads(refusal.body) == {
        "type": "https://iana.org/assignments/http-problem-types#quota-exceeded",
        "title": "Request cannot be satisfied as assigned quota has been exceeded",
        "status": 429,
        "detail": 'over the limit a"b; try again in 60 s',
        "violated-policies": ['a"b'],
    }
    head = ResponseBuilder().refusal(verdict, "HEAD")
    assert head.body == b""
    assert head.fields == refusal.fields


def test_the_body_can_be_replaced(make_request: MakeRequest, clock: ManualClock) -> None:
    gate = Gate([Rule(Keyed("1/minute", clock=clock))], in_event_loop=False)
    gate.decide(make_request())
    verdict = gate.decide(make_request())
    assert verdict.refused is not None
    answers = ResponseBuilder(
        body=lambda outcome: ("text/plain", f"slow down, {outcome.key}".encode())
    )
    refusal = answers.refusal(verdict, "GET")
    assert refusal.body == b"slow down, 203.0.113.7"
    assert ("Content-Type", "text/plain") in refusal.fields
    with pytest.raises(TypeError, match="body must be a function"):
        ResponseBuilder(body="slow down")  # type: ignore[arg-type]


def test_no_time_is_told_where_no_waiting_helps(
    make_request: MakeRequest, clock: ManualClock
) -> None:
    gate = Gate(
        [Rule(Keyed("5/minute", clock=clock), name="x", cost=lambda _: 6)], in_event_loop=False
    )
    verdict = gate.decide(make_request())
    assert verdict.refused is not None
    refusal = ResponseBuilder().refusal(verdict, "GET")
    fields = dict(refusal.fields)
    assert "Retry-After" not in fields
    assert fields["RateLimit"] == '"x";r=5'
    assert "costs more than the limit x ever lets through" in json.loads(refusal.body)["detail"]


def test_what_the_application_has_set_stands() -> None:
    fields = [
        ("Retry-After", "5"),
        ("RateLimit-Policy", '"api";q=1;w=1, "more";q=2;w=1'),
        ("RateLimit", '"api";r=0;t=1'),
        ("X-RateLimit-Limit", "1"),
    ]
    there = {"retry-after": "9", "ratelimit-policy": '"api";q=7;w=7', "ratelimit": '"api";r=7'}
    assert fields_to_add(fields, there.get) == [
        ("RateLimit-Policy", '"more";q=2;w=1'),
        ("X-RateLimit-Limit", "1"),
    ]
    assert fields_to_add(fields, {"ratelimit": '"app";r=7'}.get) == fields
    assert fields_to_add(fields, {}.get) == fields
    odd = [("RateLimit", '"a, \\"b";r=1, "c;";r=2')]
    assert fields_to_add(odd, {"ratelimit": '"x";r=1'}.get) == odd
    assert fields_to_add(odd, {"ratelimit": '"a, \\"b";r=9'}.get) == [("RateLimit", '"c;";r=2')]


@given(
    amount=st.floats(0.01, 1e6),
    per=st.floats(0.01, 1e6),
    remaining=st.floats(0, 1e6),
    retry_after=st.floats(0, 1e6),
    is_allowed=st.booleans(),
)
def test_what_a_server_of_ours_writes_a_client_of_ours_can_read(
    amount: float, per: float, remaining: float, retry_after: float, is_allowed: bool
) -> None:
    limit = Limit(amount, per)
    policy = Policy('odd "name", r=0;t=9', Keyed(limit))
    decision = Decision(is_allowed, limit, remaining, retry_after, max(retry_after, remaining))
    seconds = requested_pause(200, {"ratelimit": policy.state(decision)}.get, 0.0)
    assert seconds == (float(policy.seconds(decision)) if remaining < 1 else 0.0)
