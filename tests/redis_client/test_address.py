import socket
import ssl
import subprocess
import sys
from typing import Any

import pytest

from sluicegate.redis_client.address import Endpoint, parse_address
from sluicegate.redis_client.topology import Topology, slot_of
from tests.harness.waits import PATIENCE

RUN: dict[str, Any] = {"capture_output": True, "text": True, "timeout": 90}


@pytest.mark.parametrize(
    ("url", "kind", "endpoints", "service"),
    [
        ("redis://localhost", "", [("localhost", 6379)], ""),
        ("redis://10.0.0.7:7000/3", "", [("10.0.0.7", 7000)], ""),
        ("redis://[::1]:7000", "", [("::1", 7000)], ""),
        ("rediss://redis.example:6380", "", [("redis.example", 6380)], ""),
        ("unix:///run/redis.sock?db=2", "", [("/run/redis.sock", 0)], ""),
        ("unix://:secret@/run/redis.sock", "", [("/run/redis.sock", 0)], ""),
        ("redis+sentinel://a,b:5000/main", "sentinel", [("a", 26379), ("b", 5000)], "main"),
        ("redis+sentinel://u:secret@a/main/4", "sentinel", [("a", 26379)], "main"),
        ("rediss+cluster://a:7000,b", "cluster", [("a", 7000), ("b", 6379)], ""),
    ],
)
def test_an_address_is_read_from_a_url(
    url: str, kind: str, endpoints: list[tuple[str, int]], service: str
) -> None:
    address = parse_address(url)
    assert (address.kind, address.service) == (kind, service)
    assert list(address.endpoints) == endpoints
    assert (address.tls is not None) == url.startswith("rediss")
    assert "secret" not in repr(address) + str(address)


def test_a_connection_opens_with_the_login_and_the_database_of_the_url() -> None:
    address = parse_address("redis://ann:s%40crt@host/5")
    assert address.login == (
        b"*3\r\n$4\r\nAUTH\r\n$3\r\nann\r\n$5\r\ns@crt\r\n*2\r\n$6\r\nSELECT\r\n$1\r\n5\r\n"
    )
    assert address.login_count == 2
    assert parse_address("redis://:only@host").login == b"*2\r\n$4\r\nAUTH\r\n$4\r\nonly\r\n"
    assert parse_address("redis://host").login_count == 0
    assert (
        parse_address("redis+sentinel://host/main/4").login == b"*2\r\n$6\r\nSELECT\r\n$1\r\n4\r\n"
    )


def test_tls_checks_the_certificate_unless_told_not_to() -> None:
    strict = parse_address("rediss://host").tls
    assert strict is not None
    assert strict.check_hostname
    assert strict.verify_mode is ssl.CERT_REQUIRED
    lax = parse_address("rediss://host?ssl_cert_reqs=none").tls
    assert lax is not None
    assert not lax.check_hostname
    assert lax.verify_mode is ssl.CERT_NONE
    nameless = parse_address("rediss://host?ssl_check_hostname=false").tls
    assert nameless is not None
    assert (nameless.check_hostname, nameless.verify_mode) == (False, ssl.CERT_REQUIRED)
    with pytest.raises(OSError):
        parse_address("rediss://host?ssl_ca_certs=/nowhere/ca.pem")


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("http://host", "url must start with redis://.*got http://"),
        ("localhost:6379", "got no scheme"),
        ("unix+cluster:///run/x", "url must start with"),
        ("redis+sentinel://host", "must name a service"),
        ("redis+cluster://host/3", "database must be 0 for a Redis cluster, got 3"),
        ("redis://host/abc", "database in the Redis URL must be a number, .* got 'abc'"),
        ("redis+sentinel://host/service/x", "database in the Redis URL must be a number"),
        ("redis://user:1/secret@host", "must be a number, as in redis://host/0, got another text"),
        ("redis://host?nonsense=1", "invalid query in the Redis URL"),
    ],
)
def test_what_is_wrong_with_a_url_is_said(url: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        parse_address(url)
    wrong: Any = 6379
    with pytest.raises(TypeError, match="got 6379"):
        parse_address(wrong)


def test_a_literal_address_needs_no_lookup_and_a_name_does() -> None:
    topology = Topology(parse_address("redis://localhost"))
    assert topology.sockets(Endpoint("127.0.0.1", 1)) == [(socket.AF_INET, ("127.0.0.1", 1))]
    assert topology.sockets(Endpoint("::1", 1)) == [(socket.AF_INET6, ("::1", 1))]
    assert topology.sockets(Endpoint("/run/x", 0)) == [(socket.AF_UNIX, "/run/x")]
    assert topology.sockets(Endpoint("localhost", 1)) is None
    found = topology.resolution(Endpoint("localhost", 1)).wait(PATIENCE)
    assert topology.sockets(Endpoint("localhost", 1)) == found


def test_slots_are_those_of_redis() -> None:
    assert slot_of(b"123456789") == 12739
    assert slot_of(b"sluicegate:{user}:b1") == slot_of(b"{user}:f60") == slot_of(b"user")
    assert slot_of(b"{}nodes") != slot_of(b"")


def test_importing_sluicegate_imports_neither_redis_nor_hiredis() -> None:
    code = "import sys, sluicegate; print([m for m in ('redis', 'hiredis') if m in sys.modules])"
    run = subprocess.run([sys.executable, "-c", code], **RUN, check=True)
    assert run.stdout == "[]\n"


@pytest.mark.parametrize("missing", ["redis", "hiredis"])
def test_a_missing_package_is_named(missing: str) -> None:
    code = (
        f"import sys; sys.modules[{missing!r}] = None\n"
        "from sluicegate import RedisKeyed\n"
        "RedisKeyed('redis://127.0.0.1:1', '1/s', on_error='deny').allow('a')"
    )
    run = subprocess.run([sys.executable, "-c", code], **RUN)
    assert run.returncode == 1
    assert f"{missing!r} is missing: pip install redis hiredis" in run.stderr
