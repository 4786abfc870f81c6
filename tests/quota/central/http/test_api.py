"""The HTTP API around a real ledger, asked as a client would ask."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from starlette.testclient import TestClient

from sluicegate.quota import Entry
from tests.harness.central_without_sockets import Connected, SocketlessCentral

ANN = Entry("front", "ann", 10.0, {"requests": 5.0, "traffic_up": 1e6})
EVERYONE = Entry("front", "*", 10.0, {"requests": 2.0})
BACK = Entry("back", "*", 10.0, {"reads": 100.0})


@pytest.fixture
def central() -> SocketlessCentral:
    return SocketlessCentral([ANN, EVERYONE, BACK])


@pytest.fixture
def client(central: SocketlessCentral) -> Iterator[TestClient]:
    with TestClient(central.app) as client:
        yield client


def reason(response: httpx.Response, status: int, code: str) -> str:
    assert response.status_code == status
    assert response.headers["content-type"] == "application/json"
    body = response.json()
    assert body.keys() == {"error_code", "error_message"}
    assert body["error_code"] == code
    return str(body["error_message"])


def test_the_status_says_who_leads(central: SocketlessCentral, client: TestClient) -> None:
    central.connected = [Connected("node-1")]
    central.slot({})
    status = client.get("/api/status").json()
    assert status["name"] == status["leader"] == "central-1"
    assert (status["role"], status["epoch"], status["slot"]) == ("active", 7, 101)
    assert status["nodes"] == status["connections"] == 1
    assert status["services"] == ["front", "back"]
    assert status["limits"]["source"] == "memory"
    assert status["limits"]["entries"] == 3
    assert status["limits"]["error"] is None
    central.state.follow(central.now())
    status = client.get("/api/status").json()
    assert (status["role"], status["leader"]) == ("standby", None)


# Limits


def test_limits_are_told_as_in_a_limits_file(client: TestClient) -> None:
    body = client.get("/api/limits").json()
    assert body["limits"][0] == {
        "service": "front",
        "user": "ann",
        "burst_seconds": 10.0,
        "requests": 5.0,
        "traffic_up": 1e6,
    }
    assert (body["total"], body["editable"]) == (3, True)
    assert (body["complaints"], body["error"]) == ([], None)


@pytest.mark.parametrize(
    ("query", "users"),
    [
        ("service=front", ["ann", "*"]),
        ("user=*", ["*", "*"]),
        ("service=front&user=*", ["*"]),
        ("service=none", []),
        ("limit=1", ["ann"]),
        ("limit=2&offset=1", ["*", "*"]),
        ("offset=7", []),
    ],
)
def test_limits_can_be_chosen(client: TestClient, query: str, users: list[str]) -> None:
    body = client.get(f"/api/limits?{query}").json()
    assert [limit["user"] for limit in body["limits"]] == users


def test_a_limit_is_set_and_removed(central: SocketlessCentral, client: TestClient) -> None:
    limit = {"service": "front", "user": "bob/№ 5", "burst_seconds": 3, "requests": 50}
    body = client.put("/api/limits", json=limit).json()
    assert body["limits"] == [limit]
    central.slot({})
    told = client.get("/api/limits", params={"user": "bob/№ 5"}).json()
    assert told["limits"] == [limit]
    assert central.state.ledger.entry("front", "bob/№ 5") == Entry(
        "front", "bob/№ 5", 3.0, {"requests": 50.0}
    )
    removed = client.delete("/api/limits", params={"service": "front", "user": "bob/№ 5"})
    assert removed.json() == {"removed": {"service": "front", "user": "bob/№ 5"}}
    again = client.delete("/api/limits", params={"service": "front", "user": "bob/№ 5"})
    assert "no limit for service 'front' and user 'bob/№ 5'" in reason(again, 404, "NotFound")


def test_all_limits_are_replaced_at_once(central: SocketlessCentral, client: TestClient) -> None:
    limit = {"service": "front", "user": "bob", "burst_seconds": 3.0, "requests": 50.0}
    body = client.put("/api/limits", json={"limits": [limit]}).json()
    assert body["limits"] == [limit]
    assert client.get("/api/limits").json()["limits"] == [limit]
    assert client.put("/api/limits", json={"limits": []}).json()["total"] == 0
    assert central.limits_sync.entries == []


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        (b"", 400, "not valid JSON"),
        (b"{", 400, "not valid JSON"),
        (b'{"a": NaN}', 400, "not valid JSON"),
        (b"[" * 100_000, 400, "not valid JSON"),
        (b'{"service": "\xff"}', 400, "not valid JSON"),
        (b'{"service": "\\ud800", "user": "a", "r": 1}', 400, "not valid JSON"),
        (b"[]", 422, "must be a JSON object, got []"),
        (b"{}", 422, "service is missing, expected a name"),
        (b'{"service": "s", "user": "u"}', 422, "at least one resource, got none"),
        (b'{"service": "s", "user": 5, "r": 1}', 422, "user must be a non-empty name"),
        (b'{"service": "s", "user": "u", "r": -1}', 422, "r must be a number from 0 to 1e+15"),
        (b'{"service": "s", "user": "u", "r": true}', 422, "got True"),
        (b'{"service": "s", "user": "u", "r": 1e400}', 400, "not valid JSON"),
        (b'{"service": "s", "user": "u\\u0000", "r": 1}', 422, "no control characters"),
        (b'{"limits": 5}', 422, 'expected one limit, or {"limits": [...]}'),
        (b'{"limits": [], "user": "a"}', 422, "no other key"),
        (b'{"limits": [{"user": "a"}, 5]}', 422, "limit 1 (service None, user 'a'): service"),
    ],
)
def test_what_is_no_limit_is_refused_with_what_was_expected(
    central: SocketlessCentral, client: TestClient, body: bytes, status: int, message: str
) -> None:
    code = {400: "BadRequest", 422: "InvalidLimit"}[status]
    assert message in reason(client.put("/api/limits", content=body), status, code)
    assert central.limits_sync.entries == [ANN, EVERYONE, BACK]


def test_a_body_is_bounded(client: TestClient) -> None:
    body = b" " * (8 << 20) + b"{}"
    message = reason(client.put("/api/limits", content=body), 413, "TooLarge")
    assert "8388608 bytes" in message


def test_a_long_value_is_not_sent_back_whole(client: TestClient) -> None:
    body = {"service": "s", "user": "u", "r": "x" * 100_000}
    message = reason(client.put("/api/limits", json=body), 422, "InvalidLimit")
    assert len(message) < 1_100


@pytest.mark.parametrize(
    ("method", "path", "message"),
    [
        ("GET", "/api/limits?usr=ann", "unknown parameter 'usr'"),
        ("GET", "/api/limits?limit=0", "limit must be a whole number from 1 to 10000, got '0'"),
        ("GET", "/api/limits?limit=²", "got '²'"),
        ("GET", "/api/usage?limit=-1", "limit must be a whole number from 1 to 1000, got '-1'"),
        ("GET", "/api/usage?user=a&user=b", "repeated parameter 'user'"),
        ("GET", "/api/status?verbose=1", "expected one of: none"),
        ("DELETE", "/api/limits?service=front", "missing parameter 'user'"),
    ],
)
def test_a_query_that_makes_no_sense_is_refused(
    client: TestClient, method: str, path: str, message: str
) -> None:
    assert message in reason(client.request(method, path), 400, "BadRequest")


def test_a_file_is_not_edited_over_http(tmp_path: Path) -> None:
    path = tmp_path / "limits.toml"
    path.write_text('[[limit]]\nservice = "front"\nuser = "ann"\nrequests = 5\n')
    with TestClient(SocketlessCentral(path).app) as client:
        assert client.get("/api/limits").json()["editable"] is False
        limit = {"service": "front", "user": "bob", "requests": 1}
        for response in (
            client.put("/api/limits", json=limit),
            client.put("/api/limits", json={"limits": [limit]}),
            client.delete("/api/limits", params={"service": "front", "user": "ann"}),
        ):
            assert "limits source is read-only" in reason(response, 409, "NotEditable")


def test_a_source_that_fails_is_told_everywhere(tmp_path: Path) -> None:
    path = tmp_path / "limits.db"
    central = SocketlessCentral(path)
    with TestClient(central.app) as client:
        path.unlink()
        limit = {"service": "front", "user": "bob", "requests": 1}
        message = reason(client.put("/api/limits", json=limit), 503, "SourceFailed")
        assert "the file has disappeared" in message
        central.limits_sync.refresh()
        assert "has disappeared" in client.get("/api/limits").json()["error"]
        assert "has disappeared" in client.get("/api/status").json()["limits"]["error"]
        assert "sluicegate_central_limits_failing 1.0" in client.get("/metrics").text
    central.limits_sync.source.close()


# Usage and nodes


def test_usage_is_told_for_the_busiest_first(
    central: SocketlessCentral, client: TestClient
) -> None:
    for _ in range(3):
        central.slot(
            {
                ("node-1", "front", "ann", "requests"): (3.0, 0),
                ("node-2", "front", "ann", "requests"): (2.0, 5),
                ("node-1", "front", "bob", "requests"): (2.0, 30),
                ("node-2", "back", "ann", "reads"): (10.0, 0),
            }
        )
    body = client.get("/api/usage").json()
    assert [(user["service"], user["user"]) for user in body["users"]] == [
        ("front", "bob"),
        ("front", "ann"),
        ("back", "ann"),
    ]
    ann = body["users"][1]["resources"]
    assert ann.keys() == {"requests", "traffic_up"}
    assert ann["traffic_up"]["limit"] == 1e6
    assert ann["traffic_up"]["level"] is None
    assert ann["requests"].pop("level") < 50.0
    assert ann["requests"].pop("outstanding") == 0.0  # all that was granted is reported
    assert ann["requests"] == {
        "limit": 5.0,
        "consumed": 5.0,
        "rejected": 5.0,
        "consumed_mean": 5.0,
        "rejected_mean": 5.0,
        "recorded": 15.0,
    }


def test_usage_can_be_chosen_and_is_bounded(central: SocketlessCentral, client: TestClient) -> None:
    users = {("node-1", "front", f"u{i}", "requests"): (1.0 + i, 0) for i in range(30)}
    central.slot(users)
    central.slot(users)
    told = client.get("/api/usage?limit=2").json()["users"]
    assert [user["user"] for user in told] == ["u29", "u28"]
    assert client.get("/api/usage?service=back").json()["users"] == []
    assert client.get("/api/usage?service=none").json()["users"] == []
    (one,) = client.get("/api/usage?user=u3").json()["users"][:1]
    assert one["resources"]["requests"]["consumed"] == 4.0
    (idle,) = client.get("/api/usage?user=zoe&service=front").json()["users"]
    assert idle["resources"]["requests"]["limit"] == 2.0
    assert idle["resources"]["requests"]["consumed"] == 0.0


def test_rates_are_per_second_whatever_a_slot_is() -> None:
    central = SocketlessCentral([ANN], slot_seconds=0.5)
    for _ in range(2):
        central.slot({("node-1", "front", "ann", "requests"): (2.0, 1)})
    with TestClient(central.app) as client:
        (ann,) = client.get("/api/usage").json()["users"]
    requests = ann["resources"]["requests"]
    assert (requests["limit"], requests["consumed"], requests["rejected"]) == (5.0, 4.0, 2.0)


def test_nodes_are_told_with_their_connections(
    central: SocketlessCentral, client: TestClient
) -> None:
    central.connected = [
        Connected("node-1", last_slot=100, quota_sent=central.now() + 0.6),
        Connected(None),
        Connected("node-9", "classic"),
    ]
    central.slot({("node-2", "front", "ann", "requests"): (1.0, 0)})
    body = client.get("/api/nodes").json()
    nodes = {node.pop("name"): node for node in body["nodes"]}
    assert body["total"] == 3
    assert nodes["node-1"] == {
        "live": True,
        "kind": "sluicegate.v1",
        "address": "127.0.0.1:50000",
        "connected_since": 1_800_000_000.0,
        "frames": 3,
        "last_slot": 100,
        "quota_age": pytest.approx(0.4),
    }
    assert nodes["node-9"]["kind"] == "classic"
    assert nodes["node-9"]["quota_age"] is None
    assert nodes["node-2"]["live"] is True
    assert nodes["node-2"]["address"] is None
    central.state.follow(central.now())
    assert all(node["quota_age"] is None for node in client.get("/api/nodes").json()["nodes"])


# Health, and what is not there


def test_a_leader_that_does_not_assign_is_not_well(
    central: SocketlessCentral, client: TestClient
) -> None:
    central.slot({})
    assert (client.get("/healthz").status_code, client.get("/healthz").text) == (200, "ok")
    central.time += 2.8
    assert client.get("/healthz").status_code == 200
    central.time += 0.3
    sick = client.get("/healthz")
    assert sick.status_code == 503
    assert "the last assignment is 3." in sick.text
    central.state.follow(central.now())
    assert client.get("/healthz").status_code == 200


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/api/nothing", 404, "NotFound"),
        ("POST", "/api/limits", 405, "MethodNotAllowed"),
        ("DELETE", "/api/status", 405, "MethodNotAllowed"),
        ("PUT", "/metrics", 405, "MethodNotAllowed"),
    ],
)
def test_what_is_not_there_is_told_as_json(
    client: TestClient, method: str, path: str, status: int, code: str
) -> None:
    assert path in reason(client.request(method, path), status, code)


@pytest.mark.parametrize(
    "path", ["/api/status", "/api/limits", "/api/usage", "/api/nodes", "/metrics", "/healthz"]
)
def test_a_head_is_a_get_without_its_body(client: TestClient, path: str) -> None:
    assert client.head(path).status_code == 200


def test_a_mistake_of_ours_shows_nothing_of_itself(central: SocketlessCentral) -> None:
    central.started = None  # type: ignore[assignment]
    with TestClient(central.app, raise_server_exceptions=False) as client:
        message = reason(client.get("/api/status"), 500, "InternalError")
    assert message == "internal error (see the central's log)"
