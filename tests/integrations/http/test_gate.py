"""Rules and verdicts, with no framework in sight."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from sluicegate import Keyed, Limit, ManualClock
from sluicegate.integrations import Outcome, Request, Rule, by_header
from sluicegate.integrations.http.gate import Gate, Verdict
from sluicegate.integrations.http.request import ScopeRequest

MakeRequest = Callable[..., ScopeRequest]


def gate_of(*rules: Rule, **options: Any) -> Gate:
    return Gate(rules, in_event_loop=False, **options)


def passes(gate: Gate, request: Request) -> bool:
    return gate.decide(request).refused is None


def test_a_rule_counts_what_falls_under_it(make_request: MakeRequest) -> None:
    gate = gate_of(Rule("1/minute", path="/api/*", methods=["POST"]))
    post = [passes(gate, make_request("/api/x", method="POST")) for _ in range(2)]
    assert post == [True, False]
    assert passes(gate, make_request("/api/x", method="GET"))
    assert passes(gate, make_request("/other", method="POST"))
    assert not passes(gate, make_request("/API//x/", method="post"))


def test_head_falls_under_a_rule_for_get(make_request: MakeRequest) -> None:
    gate = gate_of(Rule("1/minute", methods=["GET"]))
    assert passes(gate, make_request())
    assert not passes(gate, make_request(method="HEAD"))


def test_the_two_headers_of_a_preflight_lift_no_limit(make_request: MakeRequest) -> None:
    headers = [("Origin", "https://a.example"), ("Access-Control-Request-Method", "POST")]
    preflight = make_request(method="OPTIONS", headers=headers)
    gate = gate_of(Rule("1/minute"))
    assert [passes(gate, preflight) for _ in range(2)] == [True, False]


async def answers_later(request: Any) -> bool:
    return False


def test_functions_that_must_be_awaited_are_refused(make_request: MakeRequest) -> None:
    for name in ("exempt", "key"):
        with pytest.raises(TypeError, match=f"{name} must not be async"):
            Rule("1/minute", **{name: answers_later})
    with pytest.raises(TypeError, match="on_refusal must not be async"):
        Gate([Rule("1/minute")], in_event_loop=True, on_refusal=answers_later)  # type: ignore[arg-type]
    hidden = gate_of(Rule("1/minute", exempt=lambda request: answers_later(request)))  # type: ignore[arg-type,return-value]
    with pytest.raises(TypeError, match="exempt must not be async"):
        passes(hidden, make_request())


def test_the_prefix_that_an_application_is_mounted_under_does_not_count(
    make_request: MakeRequest,
) -> None:
    gate = gate_of(Rule("1/minute", path="/api/*"))
    assert passes(gate, make_request("/v1/api/x", root_path="/v1"))
    assert not passes(gate, make_request("/api/x", root_path="/v1"))
    assert passes(gate, make_request("/v1x/api", root_path="/v1"))


def test_all_matching_rules_must_agree_and_none_is_charged_otherwise(
    make_request: MakeRequest, clock: ManualClock
) -> None:
    wide, narrow = Keyed("10/minute", clock=clock), Keyed("2/minute", clock=clock)
    gate = gate_of(Rule(wide, name="wide"), Rule(narrow, name="narrow"))
    assert [passes(gate, make_request()) for _ in range(5)] == [True, True, False, False, False]
    assert wide.check("203.0.113.7", 0).remaining == 8.0
    refused = gate.decide(make_request()).refused
    assert refused is not None
    assert refused.rule.name == "narrow"


def test_what_a_limit_of_the_view_refuses_is_given_back_by_the_middleware(
    make_request: MakeRequest, clock: ManualClock
) -> None:
    outer = Keyed("10/minute", clock=clock)
    middleware, view = gate_of(Rule(outer)), gate_of(Rule("1/minute"))
    for expected in (True, False, False):
        request = make_request()
        assert passes(middleware, request)
        assert passes(view, request) is expected
    assert outer.check("203.0.113.7", 0).remaining == 9.0


def test_a_limiter_that_fails_leaves_nothing_charged(
    make_request: MakeRequest, clock: ManualClock
) -> None:
    class Broken:
        limits = (Limit(1, 1),)

        def check(self, key: object, cost: float = 1.0) -> Any:
            raise ConnectionError("no limiter today")

        def refund(self, key: object, cost: float) -> None:
            raise AssertionError("nothing was charged")

    first = Keyed("10/minute", clock=clock)
    gate = gate_of(Rule(first, name="first"), Rule(Broken(), name="broken"))
    with pytest.raises(ConnectionError):
        gate.decide(make_request())
    assert first.check("203.0.113.7", 0).remaining == 10.0


def test_errors_of_your_functions_are_raised_before_anything_is_charged(
    make_request: MakeRequest, clock: ManualClock
) -> None:
    first = Keyed("10/minute", clock=clock)

    def fails(request: Request) -> Any:
        raise LookupError("who is this?")

    for option in ("key", "cost", "exempt"):
        gate = gate_of(Rule(first, name="first"), Rule("5/minute", **{option: fails}))
        with pytest.raises(LookupError):
            gate.decide(make_request())
    with pytest.raises(LookupError):
        gate_of(Rule(first, name="first"), Rule(fails, name="dynamic")).decide(make_request())
    assert first.check("203.0.113.7", 0).remaining == 10.0


def test_a_key_function_that_finds_nobody_lets_nobody_pass(make_request: MakeRequest) -> None:
    gate = gate_of(Rule("5/minute", key=lambda request: request.header("x-who")))  # type: ignore[arg-type,return-value]
    with pytest.raises(TypeError, match="got None"):
        gate.decide(make_request())


def test_costs_are_numbers_or_functions(make_request: MakeRequest, clock: ManualClock) -> None:
    keyed = Keyed("10/minute", clock=clock)
    gate = gate_of(Rule(keyed, cost=lambda request: 3 if request.path == "/big" else 0))
    for path in ("/big", "/free", "/free"):
        assert passes(gate, make_request(path))
    assert keyed.check("203.0.113.7", 0).remaining == 7.0


def test_a_cost_above_all_that_ever_passes_is_a_refusal_for_good(
    make_request: MakeRequest, clock: ManualClock
) -> None:
    keyed = Keyed("10/minute", clock=clock)
    gate = gate_of(Rule(keyed, cost=lambda _: 11))
    refused = gate.decide(make_request()).refused
    assert refused is not None
    assert not refused.can_pass
    assert keyed.check("203.0.113.7", 0).remaining == 10.0
    keyed.override("203.0.113.7", "20/minute")
    assert passes(gate, make_request())
    with pytest.raises(ValueError, match="cost 11 could never pass"):
        Rule("10/minute", cost=11)
    for cost in (-1, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="cost must be"):
            gate_of(Rule(keyed, cost=lambda _, cost=cost: cost)).decide(make_request())  # type: ignore[misc]


@pytest.mark.parametrize(
    ("algorithm", "limit", "most"),
    [
        ("token_bucket", "10/second", 10),
        ("token_bucket", "10/second burst 30", 30),
        ("token_bucket", "0.5/second", 1),
        ("fixed_window", "10/second", 10),
        ("sliding_window", "10/second; 5/minute", 5),
        ("sliding_counter", "10/second", 10),
        ("leaky_bucket", "10/second", 1),
    ],
)
def test_what_ever_passes_at_once_is_known_for_every_algorithm(
    make_request: MakeRequest, clock: ManualClock, algorithm: str, limit: str, most: int
) -> None:
    for cost, can_pass in ((most, True), (most + 1, False)):
        keyed = Keyed(limit, algorithm=algorithm, clock=clock)
        verdict = gate_of(Rule(keyed, cost=lambda _, cost=cost: cost)).decide(make_request())  # type: ignore[misc]
        assert (verdict.refused is None) is can_pass


def test_exempt_requests_are_not_counted(make_request: MakeRequest) -> None:
    gate = gate_of(Rule("1/minute", exempt=lambda request: request.header("x-probe") == "1"))
    probe = make_request(headers=[("x-probe", "1")])
    assert [passes(gate, probe) for _ in range(3)] == [True] * 3
    assert [passes(gate, make_request()) for _ in range(2)] == [True, False]


def test_a_rule_in_shadow_counts_and_tells_and_refuses_nothing(
    make_request: MakeRequest, clock: ManualClock
) -> None:
    told: list[tuple[str, bool]] = []

    def tell(request: Request, outcome: Outcome) -> None:
        told.append((outcome.rule.name, outcome.rule.shadow))

    shadow = Keyed("1/minute", clock=clock)
    gate = gate_of(
        Rule(shadow, name="new", shadow=True),
        Rule(Keyed("3/minute", clock=clock), name="old"),
        on_refusal=tell,
    )
    verdicts = [gate.decide(make_request()) for _ in range(4)]
    assert [verdict.refused is None for verdict in verdicts] == [True, True, True, False]
    assert [len(verdict.shadowed) for verdict in verdicts] == [0, 1, 1, 0]
    assert told == [("new", True), ("new", True), ("old", False)]
    clock.advance(60)
    assert passes(gate, make_request())
    assert shadow.check("203.0.113.7", 0).remaining == 0.0


def test_a_limit_may_be_a_function_with_one_limiter_per_limit(make_request: MakeRequest) -> None:
    plans = {"free": "1/minute", "paid": "2/minute", "staff": None}
    rule = Rule(lambda request: plans[request.header("x-plan") or "free"], key=by_header("x-user"))
    gate = gate_of(rule)

    def answers(plan: str, user: str, times: int) -> list[bool]:
        headers = [("x-plan", plan), ("x-user", user)]
        return [passes(gate, make_request(headers=headers)) for _ in range(times)]

    assert answers("free", "ann", 2) == [True, False]
    assert answers("paid", "bob", 3) == [True, True, False]
    assert answers("staff", "cid", 9) == [True] * 9
    assert answers("free", "dan", 2) == [True, False]
    assert len(rule.limiters) == 2


def test_limiters_of_a_function_are_made_as_you_say_and_bounded_in_number(
    make_request: MakeRequest,
) -> None:
    made: list[tuple[Limit, ...]] = []

    def make(limits: tuple[Limit, ...]) -> Keyed:
        made.append(limits)
        return Keyed(limits)

    numbers = iter(range(1, 2000))
    gate = gate_of(Rule(lambda _: f"{next(numbers)}/minute", make=make))
    for _ in range(1000):
        assert passes(gate, make_request())
    assert len(made) == 1000
    with pytest.raises(ValueError, match="more than 1000 different limits"):
        gate.decide(make_request())


def test_long_keys_of_your_functions_are_bounded_too(make_request: MakeRequest) -> None:
    gate = gate_of(Rule("5/minute", key=lambda request: request.header("x-long") or ""))
    verdict = gate.decide(make_request(headers=[("x-long", "x" * 4000)]))
    assert len(str(verdict.passed[0].key)) == 40


def test_limiters_of_coroutines_give_the_same_verdicts(
    make_request: MakeRequest, clock: ManualClock, make_async: Callable[[Keyed], Any]
) -> None:
    wide, narrow = Keyed("10/minute", clock=clock), Keyed("2/minute", clock=clock)
    shadow = Keyed("1/minute", clock=clock)
    gate = Gate(
        [
            Rule(make_async(wide), name="wide"),
            Rule(narrow, name="narrow", cost=lambda request: int(request.header("x-cost") or 1)),
            Rule(make_async(shadow), name="shadow", shadow=True),
        ],
        in_event_loop=True,
    )
    assert gate.must_await

    async def story() -> list[Verdict]:
        verdicts = [await gate.decide_async(make_request()) for _ in range(3)]
        return [*verdicts, await gate.decide_async(make_request(headers=[("x-cost", "3")]))]

    *verdicts, too_dear = asyncio.run(story())
    assert [verdict.refused is None for verdict in verdicts] == [True, True, False]
    assert [len(verdict.shadowed) for verdict in verdicts] == [0, 1, 0]
    assert too_dear.refused is not None
    assert not too_dear.refused.can_pass
    assert wide.check("203.0.113.7", 0).remaining == 8.0


def test_a_cancelled_request_gets_back_what_it_was_charged(
    make_request: MakeRequest, clock: ManualClock, make_async: Callable[[Keyed], Any]
) -> None:
    first = Keyed("10/minute", clock=clock)

    class Stuck:
        limits = (Limit(1, 1),)

        async def check(self, key: object, cost: float = 1.0) -> Any:
            await asyncio.Event().wait()

        async def refund(self, key: object, cost: float) -> None:
            raise AssertionError("nothing was charged")

    gate = Gate([Rule(make_async(first), name="a"), Rule(Stuck(), name="b")], in_event_loop=True)

    async def story() -> None:
        task = asyncio.create_task(gate.decide_async(make_request()))
        for _ in range(5):
            await asyncio.sleep(0)
        assert first.check("203.0.113.7", 0).remaining == 9.0
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(story())
    assert first.check("203.0.113.7", 0).remaining == 10.0


def test_limiters_that_cannot_work_there_are_refused_when_the_gate_is_made(
    make_request: MakeRequest,
    make_async: Callable[[Keyed], Any],
    make_blocking: Callable[[Keyed], Any],
) -> None:
    blocking, coroutines = make_blocking(Keyed("1/s")), make_async(Keyed("1/s"))
    with pytest.raises(TypeError, match="would stall every request of this event loop"):
        Gate([Rule(blocking)], in_event_loop=True)
    assert passes(Gate([Rule(blocking)], in_event_loop=False), make_request())
    with pytest.raises(TypeError, match="is async and cannot be awaited"):
        Gate([Rule(coroutines)], in_event_loop=False)
    late = Gate([Rule(lambda _: "1/s", make=lambda _: blocking)], in_event_loop=True)
    with pytest.raises(TypeError, match="blocks its thread"):
        asyncio.run(late.decide_async(make_request()))


def test_names_are_derived_and_no_two_alike() -> None:
    assert Rule("100/minute").name == "100/minute"
    assert Rule(Limit(100, 60), path="/a", methods=["POST", "PUT"]).name == "POST PUT /a"
    assert Rule(Keyed("1/s")).name == "default"
    assert Rule("1/s", path="/caf\u00e9").name == "/caf?"
    with pytest.raises(ValueError, match="two rules are named '/a'"):
        gate_of(Rule("1/s", path="/a"), Rule("2/s", path="/a"))
    gate_of(Rule("1/s"), Rule("100/minute"))
    assert repr(Rule("1/s", path="/a", shadow=True)) == (
        "Rule('/a', \"/a\";q=1;w=1, path='/a', shadow)"
    )


def test_wrong_arguments_are_told_at_once() -> None:
    for wrong, error, words in [
        ({"methods": "GET"}, TypeError, "methods must be a list"),
        ({"methods": []}, ValueError, "must not be empty"),
        ({"cost": 0}, ValueError, "cost must be"),
        ({"key": "address"}, TypeError, "key must be a function"),
        ({"exempt": True}, TypeError, "exempt must be a function"),
        ({"name": "caf\u00e9"}, ValueError, "printable ASCII"),
        ({"name": ""}, ValueError, "printable ASCII"),
        ({"path": "api"}, ValueError, "must begin with '/'"),
    ]:
        with pytest.raises(error, match=words):
            Rule("1/second", **wrong)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="unknown unit"):
        Rule("1/secnd")
    with pytest.raises(ValueError, match="at least one Rule"):
        gate_of()
    with pytest.raises(TypeError, match="expected a Rule, got '1/second'"):
        gate_of("1/second")  # type: ignore[arg-type]
