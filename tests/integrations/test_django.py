"""Django: the middleware under WSGI and ASGI, and the decorator on views of every kind."""

import asyncio
from collections.abc import Callable, Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import django
import pytest
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.http import HttpRequest, HttpResponse
from django.test import AsyncClient, Client, override_settings
from django.urls import path
from django.utils.decorators import method_decorator
from django.views import View

from sluicegate import Keyed, ManualClock
from sluicegate.integrations import Rule, by_user
from sluicegate.integrations.django import RateLimitMiddleware, limit

OURS = "sluicegate.integrations.django.RateLimitMiddleware"

if not settings.configured:
    settings.configure(
        ALLOWED_HOSTS=["*"],
        ROOT_URLCONF=ModuleType("no_urls"),
        SECRET_KEY="only for tests",
        USE_TZ=True,
    )
    django.setup()


def hello(request: HttpRequest, name: str = "you") -> HttpResponse:
    return HttpResponse(f"hello {name}")


async def hello_async(request: HttpRequest) -> HttpResponse:
    await asyncio.sleep(0)
    return HttpResponse("hello")


@pytest.fixture
def serve() -> Iterator[Callable[..., None]]:
    """Sets the views, and SLUICEGATE if there are options."""
    overrides: list[override_settings] = []

    def set_up(views: dict[str, Any], **options: Any) -> None:
        urls = ModuleType("urls")
        urls.urlpatterns = [path(name, view) for name, view in views.items()]  # type: ignore[attr-defined]
        middleware = [OURS] if options else []
        overrides.append(
            override_settings(ROOT_URLCONF=urls, MIDDLEWARE=middleware, SLUICEGATE=options)
        )
        overrides[-1].enable()

    yield set_up
    for override in overrides:
        override.disable()


def statuses(url: str, times: int) -> list[int]:
    client = Client()
    return [client.get(url).status_code for _ in range(times)]


def statuses_async(url: str, times: int) -> list[int]:
    async def story() -> list[int]:
        client = AsyncClient()
        return [(await client.get(url)).status_code for _ in range(times)]

    return asyncio.run(story())


def test_the_middleware_reads_its_rules_from_the_settings(
    serve: Callable[..., None], clock: ManualClock
) -> None:
    rule = Rule(Keyed("2/minute", clock=clock), name="api", path="/api/*")
    serve({"api/x": hello, "free": hello}, rules=[rule], headers=True)
    first = Client().get("/api/x")
    assert first.headers["RateLimit"] == '"api";r=1;t=30'
    assert statuses("/api/x", 2) == [200, 429]
    assert statuses("/API/x/", 1) == [429]
    assert statuses("/free", 5) == [200] * 5
    refused = Client().get("/api/x")
    assert refused.headers["Retry-After"] == "30"
    assert refused.headers["Content-Type"] == "application/problem+json"
    assert refused.json()["violated-policies"] == ["api"]
    clock.advance(30)
    assert statuses("/api/x", 1) == [200]


def test_under_asgi_it_is_async_and_awaits_its_limiters(
    serve: Callable[..., None], clock: ManualClock, make_async: Callable[[Keyed], Any]
) -> None:
    limiter = make_async(Keyed("2/minute", clock=clock))
    serve({"a": hello_async, "b": hello}, rules=[Rule(limiter, key=lambda _: "all")])
    assert statuses_async("/a", 1) == [200]
    assert statuses_async("/b", 2) == [200, 429]


def test_limiters_on_the_wrong_side_are_refused(
    make_async: Callable[[Keyed], Any], make_blocking: Callable[[Keyed], Any]
) -> None:
    with override_settings(SLUICEGATE={"rules": [Rule(make_async(Keyed("1/s")))]}):
        RateLimitMiddleware(hello_async)
        with pytest.raises(TypeError, match="cannot be awaited here"):
            RateLimitMiddleware(hello)
    with override_settings(SLUICEGATE={"rules": [Rule(make_blocking(Keyed("1/s")))]}):
        RateLimitMiddleware(hello)
        with pytest.raises(TypeError, match="blocks its thread"):
            RateLimitMiddleware(hello_async)


def test_settings_that_cannot_be_meant_are_told() -> None:
    for options, words in (({"rule": []}, "got 'rule'"), ({}, "'rules' is missing")):
        with (
            override_settings(SLUICEGATE=options),
            pytest.raises(ImproperlyConfigured, match=words),
        ):
            RateLimitMiddleware(hello)


def test_views_sync_and_async_may_be_decorated(
    serve: Callable[..., None], clock: ManualClock, make_async: Callable[[Keyed], Any]
) -> None:
    sync_view = limit(Keyed("1/minute", clock=clock))(hello)
    async_view = limit(make_async(Keyed("1/minute", clock=clock)))(hello_async)
    serve({"sync/<name>": sync_view, "async": async_view})
    assert Client().get("/sync/ann").content == b"hello ann"
    assert statuses("/sync/ann", 1) == [429]
    assert statuses_async("/async", 2) == [200, 429]


def test_classes_are_decorated_through_method_decorator(
    serve: Callable[..., None], clock: ManualClock
) -> None:
    @method_decorator(limit(Keyed("1/minute", clock=clock), headers=True), name="dispatch")
    class Plain(View):
        def get(self, request: HttpRequest) -> HttpResponse:
            return HttpResponse("hello")

    @method_decorator(limit(Keyed("1/minute", clock=clock), headers=True), name="dispatch")
    class WithAsyncHandlers(View):
        async def get(self, request: HttpRequest) -> HttpResponse:
            return HttpResponse("hello")

    class OneMethod(View):
        @method_decorator(limit(Keyed("1/minute", clock=clock)))
        async def get(self, request: HttpRequest) -> HttpResponse:
            return HttpResponse("hello")

    serve(
        {"a": Plain.as_view(), "b": WithAsyncHandlers.as_view(), "c": OneMethod.as_view()},
    )
    assert Client().get("/a").headers["RateLimit"] == '"default";r=0;t=60'
    assert statuses("/a", 1) == [429]
    assert statuses_async("/b", 2) == [200, 429]
    assert statuses_async("/c", 2) == [200, 429]


def test_what_a_view_refuses_is_given_back_by_the_middleware(
    serve: Callable[..., None], clock: ManualClock
) -> None:
    outer = Keyed("10/minute", clock=clock)
    view = limit(Rule(Keyed("1/minute", clock=clock), name="view"), headers=True)(hello)
    serve({"x": view}, rules=[Rule(outer, name="all", key=lambda _: "all")], headers=True)
    assert Client().get("/x").headers["RateLimit"] == '"view";r=0;t=60, "all";r=9;t=6'
    refused = Client().get("/x")
    assert refused.status_code == 429
    assert refused.headers["RateLimit"] == '"view";r=0;t=60'
    assert outer.check("all", 0).remaining == 9.0


def test_what_only_an_event_loop_could_give_back_stays_charged(
    serve: Callable[..., None], clock: ManualClock, make_async: Callable[[Keyed], Any]
) -> None:
    outer = Keyed("10/minute", clock=clock)
    view = limit(Rule(Keyed("1/minute", clock=clock), key=lambda _: "all"))(hello)
    serve({"x": view}, rules=[Rule(make_async(outer), key=lambda _: "all")])
    assert statuses_async("/x", 3) == [200, 429, 429]
    assert outer.check("all", 0).remaining == 7.0


def test_the_user_is_djangos(clock: ManualClock) -> None:
    view = limit(Rule(Keyed("1/minute", clock=clock), key=by_user()))(hello)

    def status(user: Any) -> int:
        request = HttpRequest()
        request.META = {"REQUEST_METHOD": "GET", "REMOTE_ADDR": "203.0.113.7"}
        request.path_info = "/"
        request.user = user
        return int(view(request).status_code)

    ann, bob = (SimpleNamespace(is_authenticated=True, pk=number) for number in (1, 2))
    nobody = SimpleNamespace(is_authenticated=False)
    assert [status(user) for user in (ann, ann, bob, nobody, nobody)] == [200, 429, 200, 200, 429]
