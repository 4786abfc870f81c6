"""The routes of the central's HTTP API: status, limits, usage, nodes, metrics and health.

    GET    /api/status          name, role, epoch, leader, peers and current slot
    GET    /api/limits          the entries in force, and the errors of the source
    PUT    /api/limits          set one entry, or all of them
    DELETE /api/limits          remove one entry
    GET    /api/usage           users against their limits, the busiest first
    GET    /api/nodes           the nodes and their connections
    GET    /api/state           everything that a peer needs to start with; peer token
    GET    /api/openapi.json    the description of this API, for programs
    GET    /metrics             for Prometheus
    GET    /healthz             200 "ok", or 503 with the reason

Everything is read on the loop, from a `ConnectionRegistry`, and bounded: there is a maximum of
users, entries and bytes in one response. Only limits, of which there may be 100,000, are read,
searched and encoded in threads. The server checks the token before it calls a route.
"""

import asyncio
import importlib.metadata
import time
from collections.abc import Generator, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

import orjson
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Route

from sluicegate.errors import SluicegateError
from sluicegate.quota.central.http.health import unhealthy_reason
from sluicegate.quota.central.http.metrics import CONTENT_TYPE
from sluicegate.quota.central.http.openapi import document
from sluicegate.quota.central.http.responses import ApiError, json_response
from sluicegate.quota.central.http.usage import full_slot, usage
from sluicegate.quota.central.limit_sources import NotEditable
from sluicegate.quota.central.limit_sources.edits import Change, Put, Remove, Replace
from sluicegate.quota.central.peer_state import MAX_STATE_BYTES
from sluicegate.quota.central.state_file import pack_state
from sluicegate.quota.ledger.limit_entry import Entry, parse_entry, read_tables, to_dict

if TYPE_CHECKING:
    from sluicegate.quota.central.net.connection import Connection
    from sluicegate.quota.central.net.registry import ConnectionRegistry

__all__ = ["routes"]

_MAX_BODY_BYTES = 8 << 20
_MAX_COMPLAINTS = 100
_MAX_ENTRIES = 10_000
_MAX_USERS = 1_000
_MAX_NODES = 10_000

_Result = TypeVar("_Result")


def routes(registry: "ConnectionRegistry") -> list[BaseRoute]:
    """The routes of one central. The application must have `exception_handlers()` too."""
    api = _Api(registry)
    return [
        Route("/api/status", api.status, methods=["GET"]),
        Route("/api/limits", api.limits, methods=["GET", "PUT", "DELETE"]),
        Route("/api/usage", api.usage, methods=["GET"]),
        Route("/api/nodes", api.nodes, methods=["GET"]),
        Route("/api/state", api.state, methods=["GET"]),
        Route("/api/openapi.json", api.openapi, methods=["GET"]),
        Route("/metrics", api.metrics, methods=["GET"]),
        Route("/healthz", api.healthz, methods=["GET"]),
    ]


class _Api:
    """One method for each route."""

    def __init__(self, registry: "ConnectionRegistry") -> None:
        self._registry = registry
        self._version = importlib.metadata.version("sluicegate")
        self._state_copying = asyncio.Lock()

    async def status(self, request: Request) -> Response:
        _parse_query(request)
        registry = self._registry
        state, now, limits_sync = registry.state, registry.now(), registry.limits_sync
        slot = state.slot(now)
        return json_response(
            {
                "name": registry.name,
                "role": "active" if state.leads else "standby",
                "epoch": state.epoch,
                "leader": registry.leadership.leader,
                "leader_url": registry.leadership.leader_url,
                "service_leaders": registry.leadership.service_leaders,
                "peers": [
                    {"name": peer.name, "url": peer.url, "connected": peer.is_connected}
                    for peer in registry.leadership.peers
                ],
                "warm": registry.warm_up.is_warm(now),
                "state_source": registry.warm_up.source,
                "slot": slot,
                "slot_seconds": state.ledger.slot_seconds,
                "uptime": max(0.0, time.time() - registry.started),
                "version": self._version,
                "services": state.ledger.services,
                "nodes": len(state.ledger.live_nodes(slot)),
                "connections": len(registry.connections()),
                "cells": state.ledger.cells,
                "limits": {
                    "source": limits_sync.source.name,
                    "editable": limits_sync.source.is_editable,
                    "entries": len(limits_sync.entries),
                    "complaints": len(limits_sync.complaints),
                    "error": limits_sync.error,
                    "loaded_at": limits_sync.loaded_at,
                },
            }
        )

    # Limits

    async def limits(self, request: Request) -> Response:
        if request.method == "PUT":
            return await self._put_limits(request)
        if request.method == "DELETE":
            return await self._delete_limit(request)
        query = _parse_query(request, "service", "user", "limit", "offset")
        most = _int_parameter(query, "limit", _MAX_ENTRIES, 1, _MAX_ENTRIES)
        offset = _int_parameter(query, "offset", 0, 0, 1 << 53)
        return await asyncio.to_thread(
            self._select_limits, query.get("service"), query.get("user"), most, offset
        )

    def _select_limits(
        self, service: str | None, user: str | None, most: int, offset: int
    ) -> Response:
        entries = self._registry.limits_sync.entries
        if service is not None or user is not None:
            entries = [
                entry
                for entry in entries
                if service in (None, entry.service) and user in (None, entry.user)
            ]
        return self._limits_response(entries[offset : offset + most], len(entries))

    def _limits_response(self, entries: Sequence[Entry], total: int) -> Response:
        limits_sync = self._registry.limits_sync
        return json_response(
            {
                "limits": [to_dict(entry) for entry in entries],
                "total": total,
                "source": limits_sync.source.name,
                "editable": limits_sync.source.is_editable,
                "complaints": [
                    text[:1000].encode(errors="replace").decode()
                    for text in limits_sync.complaints[:_MAX_COMPLAINTS]
                ],
                "error": limits_sync.error,
            }
        )

    async def _put_limits(self, request: Request) -> Response:
        _parse_query(request)
        change = await asyncio.to_thread(_parse_change, await _read_body(request))
        await self._edit(change)
        entries = change.entries if isinstance(change, Replace) else [change.entry]
        return await asyncio.to_thread(self._limits_response, entries[:_MAX_ENTRIES], len(entries))

    async def _delete_limit(self, request: Request) -> Response:
        query = _parse_query(request, "service", "user")
        try:
            service, user = query["service"], query["user"]
        except KeyError as error:
            raise ApiError(
                400, "BadRequest", f"missing parameter {error}: expected service and user"
            ) from None
        if not await self._edit(Remove(service, user)):
            raise ApiError(404, "NotFound", f"no limit for service {service!r} and user {user!r}")
        return json_response({"removed": {"service": service, "user": user}})

    async def _edit(self, change: Change) -> bool:
        try:
            return await self._registry.limits_sync.edit_async(change)
        except NotEditable as error:
            raise ApiError(409, "NotEditable", str(error)) from None
        except SluicegateError as error:
            raise ApiError(503, "SourceFailed", str(error)) from None

    # Usage, nodes and health

    async def usage(self, request: Request) -> Response:
        query = _parse_query(request, "service", "user", "limit")
        state = self._registry.state
        slot = full_slot(state, self._registry.now())
        users = await _run_in_steps(
            usage(
                state.ledger,
                slot,
                service=query.get("service"),
                user=query.get("user"),
                limit=_int_parameter(query, "limit", 100, 1, _MAX_USERS),
            )
        )
        return json_response(
            {"slot": slot, "slot_seconds": state.ledger.slot_seconds, "users": users}
        )

    async def nodes(self, request: Request) -> Response:
        _parse_query(request)
        state, now = self._registry.state, self._registry.now()
        slot = state.slot(now)
        connected = {
            each.node: each for each in self._registry.connections() if each.node is not None
        }
        names = sorted({*connected, *state.ledger.live_nodes(slot)})
        return json_response(
            {
                "nodes": [
                    self._node(name, connected.get(name), slot, now) for name in names[:_MAX_NODES]
                ],
                "total": len(names),
            }
        )

    def _node(
        self, name: str, connection: "Connection | None", slot: int, now: float
    ) -> dict[str, object]:
        """A live node that is not connected has only its name."""
        ledger = self._registry.state.ledger
        node: dict[str, object] = {"name": name, "live": ledger.is_live(name, slot)}
        if connection is None:
            nothing = ("kind", "address", "connected_since", "frames", "last_slot", "quota_age")
            return node | dict.fromkeys(nothing)
        sent = connection.quota_sent if self._registry.state.grants else None
        return node | {
            "kind": connection.kind,
            "address": connection.address,
            "connected_since": connection.since,
            "frames": connection.frames,
            "last_slot": connection.last_slot,
            "quota_age": None if sent is None else max(0.0, (now - sent) / ledger.slot_seconds),
        }

    async def state(self, request: Request) -> Response:
        """The state for a peer that starts. One at a time: to copy a large ledger takes a while."""
        _parse_query(request)
        registry = self._registry
        if not registry.leadership.peers:
            raise ApiError(404, "NotFound", "this central has no peers")
        if not registry.warm_up.is_warm(registry.now()):
            raise ApiError(503, "NotWarm", "this central has no state to give yet: it is not warm")
        if self._state_copying.locked():
            raise ApiError(503, "Busy", "another peer is being sent the state")
        async with self._state_copying:
            snapshot = registry.state.ledger.begin_snapshot()
            epoch = registry.state.epoch
            raw = await asyncio.to_thread(lambda: pack_state(epoch, snapshot()))
        if len(raw) > MAX_STATE_BYTES:
            raise ApiError(413, "TooLarge", f"the state has {len(raw)} bytes, too many to send")
        return Response(raw, media_type="application/octet-stream")

    async def metrics(self, request: Request) -> Response:
        return Response(self._registry.metrics.render(self._registry), media_type=CONTENT_TYPE)

    async def healthz(self, request: Request) -> Response:
        reason = unhealthy_reason(self._registry)
        return PlainTextResponse(reason or "ok", 503 if reason else 200)

    async def openapi(self, request: Request) -> Response:
        _parse_query(request)
        return json_response(document(self._version))


def _parse_query(request: Request, *names: str) -> Mapping[str, str]:
    """The query parameters; an unknown or repeated one is an error."""
    query: dict[str, str] = {}
    for name, value in request.query_params.multi_items():
        if name not in names:
            expected = ", ".join(names) or "none"
            raise ApiError(
                400, "BadRequest", f"unknown parameter {name!r}, expected one of: {expected}"
            )
        if name in query:
            raise ApiError(400, "BadRequest", f"repeated parameter {name!r}, expected it once")
        query[name] = value
    return query


def _int_parameter(
    query: Mapping[str, str], name: str, default: int, minimum: int, most: int
) -> int:
    text = query.get(name)
    if text is None:
        return default
    if text.isascii() and text.isdecimal() and len(text) < 20 and minimum <= int(text) <= most:
        return int(text)
    raise ApiError(
        400, "BadRequest", f"{name} must be a whole number from {minimum} to {most}, got {text!r}"
    )


async def _run_in_steps(work: Generator[None, None, _Result]) -> _Result:
    """Run a generator to its end, with other tasks in between, and return its result."""
    while True:
        try:
            next(work)
        except StopIteration as done:
            result: _Result = done.value
            return result
        await asyncio.sleep(0)


async def _read_body(request: Request) -> bytearray:
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > _MAX_BODY_BYTES:
            raise ApiError(
                413, "TooLarge", f"body is too large: expected at most {_MAX_BODY_BYTES} bytes"
            )
    return body


def _parse_change(text: bytearray) -> Put | Replace:
    """The edit in the body of a PUT."""
    try:
        body = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise ApiError(400, "BadRequest", f"body is not valid JSON: {error}") from None
    if not isinstance(body, dict):
        raise ApiError(422, "InvalidLimit", f"invalid limit: must be a JSON object, got {body!r}")
    if "limits" in body and "service" not in body:
        return Replace(_parse_entries(body))
    try:
        return Put(parse_entry(body))
    except ValueError as error:
        raise ApiError(422, "InvalidLimit", f"invalid limit: {error}") from None


def _parse_entries(body: Mapping[str, object]) -> list[Entry]:
    """All or none: a list that is partly invalid must not lift limits."""
    tables = body["limits"]
    if not isinstance(tables, list) or len(body) > 1:
        raise ApiError(
            422,
            "InvalidLimit",
            'invalid limit: expected one limit, or {"limits": [...]} and no other key',
        )
    entries, faults = read_tables(tables)
    if faults:
        more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
        first = faults[0].removesuffix("; skipped")
        raise ApiError(422, "InvalidLimit", f"invalid limit: {first}{more}; nothing was changed")
    return entries
