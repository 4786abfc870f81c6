"""The Flask extension: rules for all, limits on views, exemptions, error handlers."""

from typing import Any

import pytest
from flask import Blueprint, Flask, request
from flask.views import MethodView

from sluicegate import Keyed, ManualClock
from sluicegate.integrations import Rule, by_header
from sluicegate.integrations.flask import RateLimit, Refused


def make_app(rate_limit: RateLimit) -> Flask:
    """An application factory: the extension knows the application only here."""
    app = Flask(__name__)
    rate_limit.init_app(app)

    @app.get("/")
    def index() -> str:
        return "hello"

    @app.get("/health")
    @rate_limit.exempt
    def health() -> str:
        return "well"

    return app


def statuses(app: Flask, path: str, times: int, **options: Any) -> list[int]:
    client = app.test_client()
    return [client.get(path, **options).status_code for _ in range(times)]


def test_default_rules_hold_for_all_views_but_the_exempt(clock: ManualClock) -> None:
    app = make_app(RateLimit(rules=[Rule(Keyed("2/minute", clock=clock))]))
    assert statuses(app, "/health", 5) == [200] * 5
    assert statuses(app, "/", 3) == [200, 200, 429]
    assert statuses(app, "/nowhere", 1) == [429]  # who guesses paths is counted, too
    clock.advance(30)
    assert statuses(app, "/nowhere", 2) == [404, 429]


def test_a_refusal_is_the_usual_answer(clock: ManualClock) -> None:
    app = make_app(RateLimit(rules=[Rule(Keyed("1/minute", clock=clock), name="api")]))
    client = app.test_client()
    assert "RateLimit" not in client.get("/").headers
    refused = client.get("/")
    assert refused.status_code == 429
    assert refused.headers.getlist("Retry-After") == ["60"]
    assert refused.headers.getlist("RateLimit-Policy") == ['"api";q=1;w=60']
    assert refused.headers.getlist("RateLimit") == ['"api";r=0;t=60']
    assert refused.headers["Content-Type"] == "application/problem+json"
    assert refused.json is not None
    assert refused.json["violated-policies"] == ["api"]
    assert client.head("/").data == b""


def test_a_view_may_have_limits_of_its_own(clock: ManualClock) -> None:
    shared = Keyed("10/minute", clock=clock)
    rate_limit = RateLimit(rules=[Rule(shared)], headers=True)
    app = make_app(rate_limit)
    tight = Rule(Keyed("2/minute", clock=clock), name="tight", key=by_header("x-user"))

    @app.get("/search/<word>")
    @rate_limit.limit(tight)
    def search(word: str) -> str:
        return word

    client = app.test_client()
    first = client.get("/search/a", headers={"x-user": "ann"})
    assert first.text == "a"
    assert first.headers.getlist("RateLimit") == ['"default";r=9;t=6', '"tight";r=1;t=30']
    assert statuses(app, "/search/b", 3, headers={"x-user": "ann"}) == [200, 429, 429]
    assert statuses(app, "/search/b", 1, headers={"x-user": "bob"}) == [200]
    # What the view's own rule refused was not charged to the extension's.
    assert shared.check("127.0.0.1", 0).remaining == 7.0


def test_error_handlers_work_and_the_fields_are_added_to_their_answer(clock: ManualClock) -> None:
    app = make_app(RateLimit(rules=[Rule(Keyed("1/minute", clock=clock), name="api")]))

    @app.errorhandler(429)
    def over(refused: Refused) -> tuple[str, int]:
        return f"{refused.outcome.rule.name}: {refused.description}", 429

    client = app.test_client()
    client.get("/")
    answer = client.get("/")
    assert answer.text == "api: over the limit api; try again in 60 s"
    assert answer.headers.getlist("Retry-After") == ["60"]
    assert answer.headers.getlist("RateLimit") == ['"api";r=0;t=60']


def test_blueprints_and_classes_have_views_too(clock: ManualClock) -> None:
    rate_limit = RateLimit(rules=[Rule(Keyed("50/minute", clock=clock))])
    app = make_app(rate_limit)
    blueprint = Blueprint("api", __name__, url_prefix="/api")

    @blueprint.get("/plain")
    @rate_limit.limit(Keyed("1/minute", clock=clock))
    def plain() -> str:
        return request.path

    class Things(MethodView):
        decorators = [rate_limit.limit(Keyed("1/minute", clock=clock))]  # noqa: RUF012

        def get(self) -> str:
            return "things"

    app.register_blueprint(blueprint)
    app.add_url_rule("/things", view_func=Things.as_view("things"))
    assert statuses(app, "/api/plain", 2) == [200, 429]
    assert statuses(app, "/things", 2) == [200, 429]


def test_an_async_view_keeps_working() -> None:
    rate_limit = RateLimit()
    app = make_app(rate_limit)

    @app.get("/async")
    @rate_limit.limit("1/hour")
    async def is_async() -> str:
        return "async"

    assert app.test_client().get("/async").text == "async"
    assert statuses(app, "/async", 1) == [429]


@pytest.mark.parametrize("is_strict", [True, False])
def test_no_spelling_of_a_path_reaches_the_view_and_not_the_rule(is_strict: bool) -> None:
    keyed = Keyed("1000/hour")
    app = Flask(__name__)
    app.url_map.strict_slashes = is_strict
    RateLimit(app, rules=[Rule(keyed, path="/api/items", key=lambda _: "all")])

    @app.get("/api/items")
    def items() -> str:
        return "hello"

    client = app.test_client()
    reached = 0
    for path in (
        "/api/items",
        "/api/items/",
        "//api/items",
        "/api//items",
        "/API/items",
        "/api%2Fitems",
    ):
        before = keyed.check("all", 0).remaining
        environ = {"PATH_INFO": path.replace("%2F", "/")}
        is_view = client.get("/", environ_overrides=environ).status_code == 200
        assert keyed.check("all", 0).remaining < before or not is_view, path
        reached += is_view
    assert reached >= 2
