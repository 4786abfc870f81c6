"""The central's HTTP API: what is limited, who uses what, which nodes there are, is it well.

    GET    /api/status          who it is, whether it leads, which slot it is
    GET    /api/limits          the entries in force, and what is wrong with the source
    PUT    /api/limits          one entry, or all of them
    DELETE /api/limits          one entry
    GET    /api/usage           users against their limits, the busiest first
    GET    /api/nodes           the nodes and their connections
    GET    /api/openapi.json    all of this, for programs
    GET    /metrics             for Prometheus
    GET    /healthz             200 "ok", or 503 with the reason

Everything is looked up on the loop, from a `CentralView`, and bounded: so many users, entries and
bytes in one answer. Only limits, of which there may be 100,000, are read, looked through and
written in threads. Who may ask is for the server to check, before it comes here.
"""

import asyncio
import importlib.metadata
import time
from collections.abc import Generator, Mapping, Sequence
from typing import TypeVar

import orjson
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Route

from sluicegate.errors import SluicegateError
from sluicegate.quota.central.http.health import CentralView, ConnectionView, is_late
from sluicegate.quota.central.http.metrics import CONTENT_TYPE
from sluicegate.quota.central.http.openapi import document
from sluicegate.quota.central.http.responses import Refused, answer, exception_handlers, refusal
from sluicegate.quota.central.http.usage import full_slot, usage
from sluicegate.quota.central.sources import NotEditable
from sluicegate.quota.central.sources.edits import Change, Put, Remove, Replace
from sluicegate.quota.ledger.entry import Entry, entry_of, read_tables, table_of

__all__ = ["CentralView", "ConnectionView", "exception_handlers", "refusal", "routes"]

_MOST_BODY_BYTES = 8 << 20
_MOST_COMPLAINTS = 100
_MOST_ENTRIES = 10_000
_MOST_USERS = 1_000
_MOST_NODES = 10_000

_Result = TypeVar("_Result")


def routes(view: CentralView) -> list[BaseRoute]:
    """The routes of one central. The application must have `exception_handlers()` too."""
    api = _Api(view)
    return [
        Route("/api/status", api.status, methods=["GET"]),
        Route("/api/limits", api.limits, methods=["GET", "PUT", "DELETE"]),
        Route("/api/usage", api.usage, methods=["GET"]),
        Route("/api/nodes", api.nodes, methods=["GET"]),
        Route("/api/openapi.json", api.openapi, methods=["GET"]),
        Route("/metrics", api.metrics, methods=["GET"]),
        Route("/healthz", api.healthz, methods=["GET"]),
    ]


class _Api:
    """One method for each route."""

    def __init__(self, view: CentralView) -> None:
        self._view = view
        self._version = importlib.metadata.version("sluicegate")

    async def status(self, request: Request) -> Response:
        _query(request)
        view = self._view
        state, now, keeper = view.state, view.now(), view.keeper
        slot = state.slot(now)
        return answer(
            {
                "name": view.name,
                "role": "active" if state.leads else "standby",
                "epoch": state.epoch,
                "leader": view.name if state.leads else None,
                "slot": slot,
                "slot_seconds": state.ledger.slot_seconds,
                "uptime": max(0.0, time.time() - view.started),
                "version": self._version,
                "services": state.ledger.services,
                "nodes": len(state.ledger.live_nodes(slot)),
                "connections": len(view.connections()),
                "cells": state.ledger.cells,
                "limits": {
                    "source": keeper.source.name,
                    "editable": keeper.source.is_editable,
                    "entries": len(keeper.entries),
                    "complaints": len(keeper.complaints),
                    "error": keeper.error,
                    "loaded_at": keeper.loaded_at,
                },
            }
        )

    # Limits

    async def limits(self, request: Request) -> Response:
        if request.method == "PUT":
            return await self._put_limits(request)
        if request.method == "DELETE":
            return await self._delete_limit(request)
        query = _query(request, "service", "user", "limit", "offset")
        most = _number(query, "limit", _MOST_ENTRIES, 1, _MOST_ENTRIES)
        offset = _number(query, "offset", 0, 0, 1 << 53)
        return await asyncio.to_thread(
            self._chosen, query.get("service"), query.get("user"), most, offset
        )

    def _chosen(self, service: str | None, user: str | None, most: int, offset: int) -> Response:
        entries = self._view.keeper.entries
        if service is not None or user is not None:
            entries = [
                entry
                for entry in entries
                if service in (None, entry.service) and user in (None, entry.user)
            ]
        return self._limits(entries[offset : offset + most], len(entries))

    def _limits(self, entries: Sequence[Entry], total: int) -> Response:
        keeper = self._view.keeper
        return answer(
            {
                "limits": [table_of(entry) for entry in entries],
                "total": total,
                "source": keeper.source.name,
                "editable": keeper.source.is_editable,
                "complaints": [
                    text[:1000].encode(errors="replace").decode()
                    for text in keeper.complaints[:_MOST_COMPLAINTS]
                ],
                "error": keeper.error,
            }
        )

    async def _put_limits(self, request: Request) -> Response:
        _query(request)
        change = await asyncio.to_thread(_change, await _body(request))
        await self._edit(change)
        entries = change.entries if isinstance(change, Replace) else [change.entry]
        return await asyncio.to_thread(self._limits, entries[:_MOST_ENTRIES], len(entries))

    async def _delete_limit(self, request: Request) -> Response:
        query = _query(request, "service", "user")
        try:
            service, user = query["service"], query["user"]
        except KeyError as error:
            raise Refused(
                400, "BadRequest", f"expected the parameters service and user, {error} is missing"
            ) from None
        if not await self._edit(Remove(service, user)):
            raise Refused(404, "NotFound", f"{service!r} has no limit for the user {user!r}")
        return answer({"removed": {"service": service, "user": user}})

    async def _edit(self, change: Change) -> bool:
        try:
            return await self._view.keeper.edit_async(change)
        except NotEditable as error:
            raise Refused(409, "NotEditable", str(error)) from None
        except SluicegateError as error:
            raise Refused(503, "SourceFailed", str(error)) from None

    # Looking

    async def usage(self, request: Request) -> Response:
        query = _query(request, "service", "user", "limit")
        state = self._view.state
        slot = full_slot(state, self._view.now())
        users = await _in_turns(
            usage(
                state.ledger,
                slot,
                service=query.get("service"),
                user=query.get("user"),
                limit=_number(query, "limit", 100, 1, _MOST_USERS),
            )
        )
        return answer({"slot": slot, "slot_seconds": state.ledger.slot_seconds, "users": users})

    async def nodes(self, request: Request) -> Response:
        _query(request)
        state, now = self._view.state, self._view.now()
        slot = state.slot(now)
        connected = {each.node: each for each in self._view.connections() if each.node is not None}
        names = sorted({*connected, *state.ledger.live_nodes(slot)})
        return answer(
            {
                "nodes": [
                    self._node(name, connected.get(name), slot, now) for name in names[:_MOST_NODES]
                ],
                "total": len(names),
            }
        )

    def _node(
        self, name: str, connection: ConnectionView | None, slot: int, now: float
    ) -> dict[str, object]:
        """Of a live node that is not connected here, only that it was heard of lately."""
        ledger = self._view.state.ledger
        node: dict[str, object] = {"name": name, "live": ledger.is_live(name, slot)}
        if connection is None:
            nothing = ("kind", "address", "connected_since", "frames", "last_slot", "quota_age")
            return node | dict.fromkeys(nothing)
        sent = connection.quota_sent
        return node | {
            "kind": connection.kind,
            "address": connection.address,
            "connected_since": connection.since,
            "frames": connection.frames,
            "last_slot": connection.last_slot,
            "quota_age": None if sent is None else max(0.0, (now - sent) / ledger.slot_seconds),
        }

    async def metrics(self, request: Request) -> Response:
        return Response(self._view.metrics.render(self._view), media_type=CONTENT_TYPE)

    async def healthz(self, request: Request) -> Response:
        reason = is_late(self._view)
        return PlainTextResponse(reason or "ok", 503 if reason else 200)

    async def openapi(self, request: Request) -> Response:
        _query(request)
        return answer(document(self._version))


def _query(request: Request, *names: str) -> Mapping[str, str]:
    """The parameters; one that is not known or given twice is a slip that must not pass."""
    query: dict[str, str] = {}
    for name, value in request.query_params.multi_items():
        if name not in names:
            expected = ", ".join(names) or "none"
            raise Refused(
                400, "BadRequest", f"unknown parameter {name!r}, expected of these: {expected}"
            )
        if name in query:
            raise Refused(400, "BadRequest", f"expected {name} once, got it twice")
        query[name] = value
    return query


def _number(query: Mapping[str, str], name: str, default: int, least: int, most: int) -> int:
    text = query.get(name)
    if text is None:
        return default
    if text.isascii() and text.isdecimal() and len(text) < 20 and least <= int(text) <= most:
        return int(text)
    raise Refused(
        400, "BadRequest", f"{name} must be a whole number from {least} to {most}, got {text!r}"
    )


async def _in_turns(work: Generator[None, None, _Result]) -> _Result:
    """What some work returns that is done in steps, between which others have their turn."""
    while True:
        try:
            next(work)
        except StopIteration as done:
            result: _Result = done.value
            return result
        await asyncio.sleep(0)


async def _body(request: Request) -> bytearray:
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > _MOST_BODY_BYTES:
            raise Refused(413, "TooLarge", f"expected a body of at most {_MOST_BODY_BYTES} bytes")
    return body


def _change(text: bytearray) -> Put | Replace:
    """What the body of a PUT asks for."""
    try:
        body = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise Refused(400, "BadRequest", f"the body is not valid JSON: {error}") from None
    if not isinstance(body, dict):
        raise Refused(422, "InvalidLimit", f"a limit must be a JSON object, got {body!r}")
    if "limits" in body and "service" not in body:
        return Replace(_entries(body))
    try:
        return Put(entry_of(body))
    except ValueError as error:
        raise Refused(422, "InvalidLimit", str(error)) from None


def _entries(body: Mapping[str, object]) -> list[Entry]:
    """All or none: a list that is half right is a slip, and no reason to lift limits."""
    tables = body["limits"]
    if not isinstance(tables, list) or len(body) > 1:
        raise Refused(
            422, "InvalidLimit", 'expected one limit, or {"limits": [...]} and nothing beside it'
        )
    entries, faults = read_tables(tables)
    if faults:
        more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
        first = faults[0].removesuffix("; skipped")
        raise Refused(422, "InvalidLimit", f"{first}{more}; nothing was changed")
    return entries
