"""The FastAPI dependency: on routes of every kind."""

from collections.abc import Callable
from typing import Any

import pytest
from fastapi import Depends, FastAPI, Request, Response, WebSocket
from fastapi.responses import PlainTextResponse
from starlette.testclient import TestClient
from starlette.websockets import WebSocketDisconnect

from sluicegate import Keyed, ManualClock
from sluicegate.integrations import Rule, by_header
from sluicegate.integrations.asgi import RateLimitMiddleware
from sluicegate.integrations.fastapi import RESPONSES, Refused, answer_refused, limit


def test_routes_that_are_async_or_not_are_limited_each_by_itself(clock: ManualClock) -> None:
    app = FastAPI()

    @app.get("/async", dependencies=[Depends(limit(Keyed("1/minute", clock=clock)))])
    async def is_async() -> str:
        return "async"

    @app.get("/sync", dependencies=[Depends(limit(Keyed("2/minute", clock=clock)))])
    def is_sync() -> str:
        return "sync"

    with TestClient(app) as client:
        assert [client.get("/async").status_code for _ in range(2)] == [200, 429]
        assert [client.get("/sync").status_code for _ in range(3)] == [200, 200, 429]
        clock.advance(60)
        assert client.get("/async").json() == "async"


def test_a_refusal_has_the_fields_and_a_body_in_problem_json(clock: ManualClock) -> None:
    app = FastAPI()
    dependency = limit(Rule(Keyed("1/minute", clock=clock), name="search"))

    @app.get("/", dependencies=[Depends(dependency)])
    async def view() -> str:
        return "hello"

    with TestClient(app) as client:
        client.get("/")
        plain = client.get("/")
        assert plain.status_code == 429
        assert plain.headers["retry-after"] == "60"
        assert plain.headers["ratelimit"] == '"search";r=0;t=60'
        assert plain.headers["content-type"] == "application/problem+json"
        assert plain.json() == {"detail": "over the limit search; try again in 60 s"}
    app.add_exception_handler(Refused, answer_refused)
    app.middleware_stack = None
    with TestClient(app) as client:
        whole = client.get("/")
        assert whole.status_code == 429
        assert whole.headers["retry-after"] == "60"
        assert whole.json()["violated-policies"] == ["search"]


def test_a_handler_of_your_own_sees_the_outcome(clock: ManualClock) -> None:
    app = FastAPI()

    @app.exception_handler(Refused)
    async def answer(request: Request, refused: Refused) -> Response:
        return PlainTextResponse(f"{refused.outcome.key} is over", 429, refused.headers)

    rule = Rule(Keyed("1/minute", clock=clock), key=by_header("x-user"))

    @app.get("/", dependencies=[Depends(limit(rule))])
    async def view() -> str:
        return "hello"

    with TestClient(app) as client:
        client.get("/", headers={"x-user": "ann"})
        assert client.get("/", headers={"x-user": "ann"}).text == "x-user=ann is over"
        assert client.get("/", headers={"x-user": "bob"}).status_code == 200


def test_answers_that_pass_carry_the_fields_of_all_dependencies(clock: ManualClock) -> None:
    app = FastAPI()
    first = limit(Rule(Keyed("5/minute", clock=clock), name="a"), headers=True)
    second = limit(Rule(Keyed("9/minute", clock=clock), name="b"), headers=True)

    @app.get("/", dependencies=[Depends(first), Depends(second)])
    async def view() -> str:
        return "hello"

    with TestClient(app) as client:
        assert client.get("/").headers["ratelimit"] == '"a";r=4;t=12, "b";r=8;t=7'


def test_a_later_refusal_gives_back_what_the_earlier_ones_charged(clock: ManualClock) -> None:
    outer, middle = Keyed("10/minute", clock=clock), Keyed("10/minute", clock=clock)
    app = FastAPI(dependencies=[Depends(limit(Rule(middle, key=lambda _: "all")))])
    rules = [Rule(outer, name="outer", key=lambda _: "all")]
    app.add_middleware(RateLimitMiddleware, rules=rules, headers=True)

    @app.get("/", dependencies=[Depends(limit(Keyed("1/minute", clock=clock)))])
    async def view() -> str:
        return "hello"

    with TestClient(app) as client:
        assert [client.get("/").status_code for _ in range(2)] == [200, 429]
        assert client.get("/").headers["ratelimit"] == '"default";r=0;t=60'
    assert outer.check("all", 0).remaining == middle.check("all", 0).remaining == 9.0


def test_a_refused_websocket_is_closed_before_it_is_accepted(clock: ManualClock) -> None:
    app = FastAPI()

    @app.websocket("/", dependencies=[Depends(limit(Keyed("1/minute", clock=clock), headers=True))])
    async def socket(websocket: WebSocket) -> None:
        await websocket.accept()
        await websocket.send_text("hello")
        await websocket.close()

    with TestClient(app) as client:
        with client.websocket_connect("/") as session:
            assert session.receive_text() == "hello"
        with pytest.raises(WebSocketDisconnect) as refused, client.websocket_connect("/"):
            pass
        assert refused.value.code == 1013


def test_limiters_of_coroutines_are_awaited_and_blocking_ones_refused(
    clock: ManualClock,
    make_async: Callable[[Keyed], Any],
    make_blocking: Callable[[Keyed], Any],
) -> None:
    app = FastAPI()

    @app.get("/", dependencies=[Depends(limit(make_async(Keyed("1/minute", clock=clock))))])
    def view() -> str:
        return "hello"

    with TestClient(app) as client:
        assert [client.get("/").status_code for _ in range(2)] == [200, 429]
    with pytest.raises(TypeError, match="blocks its thread"):
        limit(make_blocking(Keyed("1/s")))


def test_openapi_tells_of_the_refusal() -> None:
    app = FastAPI(responses=RESPONSES)

    @app.get("/", dependencies=[Depends(limit("1/minute"))])
    async def view() -> str:
        return "hello"

    answers = app.openapi()["paths"]["/"]["get"]["responses"]
    assert "Retry-After" in answers["429"]["headers"]
    assert "application/problem+json" in answers["429"]["content"]
    assert "parameters" not in app.openapi()["paths"]["/"]["get"]
    assert repr(limit("1/minute")).startswith("limit(Rule('1/minute'")
