"""The OpenAPI 3.1 document of the HTTP API, written by hand.

A test drives the server from this document, so the two agree.
"""

from typing import Any

__all__ = ["document"]

_Json = dict[str, Any]


def document(version: str) -> _Json:
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Sluicegate central",
            "version": version,
            "description": "Limits, usage, nodes and health of a central. If tokens are set, all "
            "paths but /healthz require the admin token, and /api/state that of the peers.",
        },
        "paths": {
            "/api/status": {"get": _get("status", "Name, role and state of the central", "Status")},
            "/api/limits": {"get": _GET_LIMITS, "put": _PUT_LIMITS, "delete": _DELETE_LIMIT},
            "/api/usage": {"get": _GET_USAGE},
            "/api/nodes": {"get": _get("nodes", "Nodes and their connections", "Nodes")},
            "/api/state": {"get": _STATE},
            "/api/openapi.json": {"get": _OPENAPI},
            "/metrics": {"get": _METRICS},
            "/healthz": {"get": _HEALTHZ},
        },
        "components": {
            "schemas": _SCHEMAS,
            "securitySchemes": {
                "admin": {"type": "http", "scheme": "bearer"},
                "peer": {"type": "http", "scheme": "bearer"},
            },
        },
        "security": [{"admin": []}, {}],
    }


def _json(description: str, schema: str) -> _Json:
    reference = {"$ref": f"#/components/schemas/{schema}"}
    return {"description": description, "content": {"application/json": {"schema": reference}}}


def _text(description: str) -> _Json:
    return {"description": description, "content": {"text/plain": {"schema": {"type": "string"}}}}


def _errors(*statuses: int) -> _Json:
    return {str(status): _json(_ERRORS[status], "Error") for status in statuses}


_ERRORS = {
    400: "invalid request",
    401: "missing or invalid token",
    404: "no such limit",
    409: "limits source is read-only",
    413: "body is too large",
    422: "invalid limit",
    503: "limits source failed",
}


def _get(name: str, summary: str, schema: str) -> _Json:
    return {
        "operationId": name,
        "summary": summary,
        "responses": {"200": _json("current state", schema)} | _errors(400, 401),
    }


def _parameter(name: str, description: str, schema: _Json, *, required: bool = False) -> _Json:
    return {
        "name": name,
        "in": "query",
        "required": required,
        "description": description,
        "schema": schema,
    }


_TEXT = {"type": "string"}
_AMOUNT = {"type": "number", "minimum": 0}
_SERVICE_FILTER = _parameter("service", "only this service", _TEXT)
_USER_FILTER = _parameter("user", 'only this user ("*": users without a limit of their own)', _TEXT)


def _whole(minimum: int, maximum: int, default: int) -> _Json:
    return {"type": "integer", "minimum": minimum, "maximum": maximum, "default": default}


_GET_LIMITS = _get("limits", "The entries in force", "Limits") | {
    "parameters": [
        _SERVICE_FILTER,
        _USER_FILTER,
        _parameter("limit", "maximum number of entries", _whole(1, 10_000, 10_000)),
        _parameter("offset", "number of entries to skip", _whole(0, 1 << 53, 0)),
    ]
}
_PUT_LIMITS = {
    "operationId": "put_limits",
    "summary": "Set the entry of a service and user, or replace all entries",
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "schema": {
                    "oneOf": [
                        {"$ref": "#/components/schemas/Limit"},
                        {"$ref": "#/components/schemas/AllLimits"},
                    ]
                }
            }
        },
    },
    "responses": {
        "200": _json("the entries that were set; in force from the next slot on", "Limits")
    }
    | _errors(400, 401, 409, 413, 422, 503),
}
_DELETE_LIMIT = {
    "operationId": "delete_limit",
    "summary": "Remove the entry of a service and user",
    "parameters": [
        _parameter("service", "service of the entry", _TEXT, required=True),
        _parameter("user", "user of the entry", _TEXT, required=True),
    ],
    "responses": {"200": _json("the entry was removed", "Removed")}
    | _errors(400, 401, 404, 409, 503),
}
_GET_USAGE = _get("usage", "Users against their limits, the busiest first", "Usage") | {
    "parameters": [
        _SERVICE_FILTER,
        _USER_FILTER,
        _parameter("limit", "maximum number of users", _whole(1, 1_000, 100)),
    ]
}
_STATE = {
    "operationId": "state",
    "summary": "Everything that another central needs to start with",
    "security": [{"peer": []}, {}],
    "responses": {
        "200": {
            "description": "the epoch and a snapshot, as in a state file",
            "content": {"application/octet-stream": {"schema": {"type": "string"}}},
        },
        "404": _json("this central has no peers", "Error"),
        "413": _json("the state is too large to be sent", "Error"),
        "503": _json("this central is not warm yet, or another peer is being answered", "Error"),
    }
    | _errors(400, 401),
}
_OPENAPI = {
    "operationId": "openapi",
    "summary": "This document",
    "responses": {
        "200": {
            "description": "OpenAPI 3.1",
            "content": {"application/json": {"schema": {"type": "object"}}},
        }
    }
    | _errors(400, 401),
}
_METRICS = {
    "operationId": "metrics",
    "summary": "Metrics for Prometheus",
    "responses": {"200": _text("Prometheus text format")} | _errors(401),
}
_HEALTHZ = {
    "operationId": "healthz",
    "summary": "Whether it does its work",
    "security": [{}],
    "responses": {"200": _text('"ok"'), "503": _text("why it is not well")},
}


def _object(properties: _Json, *, closed: bool = True) -> _Json:
    """All of the properties are always there."""
    schema: _Json = {
        "type": "object",
        "required": list(properties),
        "properties": properties,
    }
    return schema | {"additionalProperties": False} if closed else schema


def _list_of(schema: str) -> _Json:
    return {"type": "array", "items": {"$ref": f"#/components/schemas/{schema}"}}


def _or_null(kind: str) -> _Json:
    return {"type": [kind, "null"]}


# No control characters: what the other rules for names are (bytes of UTF-8) JSON Schema cannot say.
_PLAIN = "^[^\\u0000-\\u001f\\u007f-\\u009f]+$"
_RATE = {"type": "number", "minimum": 0, "maximum": 1e15}

_SCHEMAS: _Json = {
    "Error": _object({"error_code": _TEXT, "error_message": _TEXT}),
    "Limit": {
        "type": "object",
        "description": "An entry as in a limits file. Every other key is a resource, with its rate "
        "in units per second; at least one is required.",
        "required": ["service", "user"],
        "properties": {
            "service": {"type": "string", "minLength": 1, "maxLength": 50, "pattern": _PLAIN},
            "user": {"type": "string", "minLength": 1, "maxLength": 200, "pattern": _PLAIN},
            "burst_seconds": _RATE | {"default": 10},
        },
        "propertyNames": {"minLength": 1, "maxLength": 200, "pattern": _PLAIN},
        "additionalProperties": _RATE,
        "minProperties": 3,
    },
    "AllLimits": _object({"limits": _list_of("Limit")}),
    "Limits": _object(
        {
            "limits": _list_of("Limit"),
            "total": {"type": "integer"},
            "source": _TEXT,
            "editable": {"type": "boolean"},
            "complaints": {"type": "array", "items": _TEXT},
            "error": _or_null("string"),
        }
    ),
    "Peer": _object({"name": _TEXT, "url": _TEXT, "connected": _or_null("boolean")}),
    "Removed": _object({"removed": _object({"service": _TEXT, "user": _TEXT})}),
    "Status": _object(
        {
            "name": _TEXT,
            "role": {"enum": ["active", "standby"]},
            "epoch": {"type": "integer"},
            "leader": _or_null("string"),
            "leader_url": _or_null("string"),
            "service_leaders": {"type": "object", "additionalProperties": {"type": "string"}},
            "peers": _list_of("Peer"),
            "warm": {"type": "boolean"},
            "state_source": _TEXT,
            "slot": {"type": "integer"},
            "slot_seconds": _AMOUNT,
            "uptime": _AMOUNT,
            "version": _TEXT,
            "services": {"type": "array", "items": _TEXT},
            "nodes": {"type": "integer"},
            "connections": {"type": "integer"},
            "cells": {"type": "integer"},
            "limits": _object(
                {
                    "source": _TEXT,
                    "editable": {"type": "boolean"},
                    "entries": {"type": "integer"},
                    "complaints": {"type": "integer"},
                    "error": _or_null("string"),
                    "loaded_at": _or_null("number"),
                }
            ),
        },
        closed=False,
    ),
    "Usage": _object(
        {
            "slot": {"type": "integer", "description": "the last slot whose reports have arrived"},
            "slot_seconds": _AMOUNT,
            "users": {
                "type": "array",
                "items": _object(
                    {
                        "service": _TEXT,
                        "user": _TEXT,
                        "resources": {
                            "type": "object",
                            "additionalProperties": {"$ref": "#/components/schemas/Used"},
                        },
                    }
                ),
            },
        }
    ),
    "Used": _object(
        {
            "limit": _or_null("number") | {"description": "per second; null: no limit"},
            "level": _or_null("number") | {"description": "below 0: debt; null: unknown"},
            "consumed": _AMOUNT | {"description": "per second, in the slot"},
            "rejected": _AMOUNT | {"description": "requests per second, in the slot"},
            "consumed_mean": _AMOUNT | {"description": "per second, in the last ten slots"},
            "rejected_mean": _AMOUNT
            | {"description": "requests per second, in the last ten slots"},
            "outstanding": {
                "type": "number",
                "description": "promised to nodes, or reserved by running requests",
            },
            "recorded": _AMOUNT | {"description": "booked since the bucket was created"},
        }
    ),
    "Nodes": _object(
        {
            "nodes": {
                "type": "array",
                "items": _object(
                    {
                        "name": _TEXT,
                        "live": {"type": "boolean"},
                        "kind": _or_null("string"),
                        "address": _or_null("string"),
                        "connected_since": _or_null("number"),
                        "frames": _or_null("integer"),
                        "last_slot": _or_null("integer"),
                        "quota_age": _or_null("number")
                        | {"description": "slots since the last quota; null on a standby"},
                    }
                ),
            },
            "total": {"type": "integer"},
        }
    ),
}
