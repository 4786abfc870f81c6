"""`EtcdElection` against a real etcd: login, certificates, fail-over, and lost data."""

import asyncio
import base64
import json
import shutil
import socket
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from sluicegate.election import EtcdElection
from sluicegate.election.candidacy import Held, Regressed, Taken, Vacant
from sluicegate.errors import ConfigError, ProtocolError, SluicegateError, Unavailable
from tests.election.campaign import LEASE
from tests.harness.elections import EtcdElectorate, Leaderships, campaigning, wait_for_leader
from tests.harness.etcd import EtcdServer
from tests.harness.servers import ROOT, freeze, reserve_port, thaw
from tests.harness.waits import PATIENCE, Output, wait_until

KEY = base64.b64encode(b"sluicegate/election/default").decode()
PATIENT = 2.0  # seconds for a call where its being late is not the point


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdServer]:
    server = EtcdServer(tmp_path_factory.mktemp("etcd"))
    yield server
    server.close()


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate that is its own authority, and its key."""
    folder = tmp_path_factory.mktemp("certificate")
    certificate, key = folder / "certificate.pem", folder / "key.pem"
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2"
    names = ("-subj", "/CN=etcd", "-addext", "subjectAltName=IP:127.0.0.1")
    files = ("-keyout", str(key), "-out", str(certificate))
    subprocess.run(
        [*command.split(), *names, *files], check=True, capture_output=True, timeout=PATIENCE
    )
    return certificate, key


@pytest.fixture(scope="module")
def locked_server(
    tmp_path_factory: pytest.TempPathFactory, certificate: tuple[Path, Path]
) -> Iterator[EtcdServer]:
    """etcd with TLS and authentication: `app` may use our keys, `guest` may do nothing."""
    folder = tmp_path_factory.mktemp("locked")
    server = EtcdServer(folder, certificate=certificate)
    try:
        for user in ("root", "app", "guest"):
            server.call("/v3/auth/user/add", {"name": user, "password": "right"})
            server.call("/v3/auth/role/add", {"name": user})
            server.call("/v3/auth/user/grant", {"user": user, "role": user})
        begin, end = (base64.b64encode(key).decode() for key in (b"sluicegate/", b"sluicegate0"))
        allowed = {"permType": "READWRITE", "key": begin, "range_end": end}
        server.call("/v3/auth/role/grant", {"name": "app", "perm": allowed})
        server.call("/v3/auth/enable", {})
        yield server
    finally:
        server.close()


@asynccontextmanager
async def store_of(endpoints: str | list[str], name: str, **options: Any) -> AsyncIterator[Any]:
    """The store of a candidate, to be called by hand."""
    store = EtcdElection(endpoints, name, **({"timeout": PATIENT, "lease": 2.0} | options))._store
    try:
        yield store
    finally:
        await store.close()


def test_a_candidate_logs_in_over_tls_and_again_when_its_token_has_expired(
    locked_server: EtcdServer, certificate: tuple[Path, Path]
) -> None:
    async def run() -> None:
        tls = ssl.create_default_context(cafile=str(certificate[0]))
        login = {"user": "app", "password": "right", "tls": tls}
        endpoints = locked_server.endpoints
        async with store_of(endpoints, "a", **login) as a, store_of(endpoints, "b", **login) as b:
            won = await a.claim(0, False)
            assert isinstance(won, Held)
            assert isinstance(await b.claim(0, False), Taken)
            for store in (a, b):
                store._gateway._token = "expired"
            assert isinstance(await a.renew(won.epoch), Held)
            assert isinstance(await b.claim(0, False), Taken)
            watching = asyncio.create_task(b.wait(PATIENCE))
            await asyncio.sleep(0.1)
            await a.release()
            await watching

    asyncio.run(run())


@pytest.mark.parametrize(
    ("login", "message"),
    [
        ({"user": "app", "password": "wrong"}, "refuses the user 'app'.*check user and password"),
        ({"user": "guest", "password": "right"}, "denies access: .*permission denied"),
        ({}, "needs a login: give user and password"),
    ],
)
def test_a_login_that_is_refused_stops_the_start(
    locked_server: EtcdServer,
    certificate: tuple[Path, Path],
    login: dict[str, str],
    message: str,
) -> None:
    async def run() -> None:
        tls = ssl.create_default_context(cafile=str(certificate[0]))
        endpoints = locked_server.endpoints
        async with EtcdElection(endpoints, "a", tls=tls, timeout=PATIENT, **login):
            pass

    with pytest.raises(ConfigError, match=message) as caught:
        asyncio.run(run())
    assert "right" not in str(caught.value)
    assert "wrong" not in str(caught.value)


def test_a_certificate_of_an_unknown_authority_stops_the_start(locked_server: EtcdServer) -> None:
    async def run() -> None:
        async with EtcdElection(locked_server.endpoints, "a", timeout=PATIENT):
            pass

    with pytest.raises(ConfigError, match="cannot verify the certificate of etcd at https://"):
        asyncio.run(run())


def test_a_login_is_not_needed_where_none_is_asked_for(server: EtcdServer) -> None:
    async def run() -> None:
        async with store_of(server.endpoints, "a", user="app", password="x") as store:
            assert isinstance(await store.claim(0, False), Held)
            await store.release()

    asyncio.run(run())


def test_endpoints_that_do_not_answer_are_passed_over(server: EtcdServer) -> None:
    async def run(silent: str, refusing: str) -> None:
        endpoints = [silent, refusing, *server.endpoints]
        # A quarter of a second for the silent one; the next calls begin with the one that answers.
        async with store_of(endpoints, "a", timeout=0.25, group="fail-over") as store:
            won = None
            while won is None:
                with suppress(Unavailable):  # a busy machine: the real one was late, too
                    won = await store.claim(0, False)
            assert isinstance(won, Held)
            assert store._gateway._endpoints[store._gateway._current] == server.endpoints[0]
            await store.release()
        async with store_of([silent, refusing], "a", timeout=0.25) as store:
            with pytest.raises(Unavailable, match="no endpoint of etcd answers: .*; cannot reach"):
                await store.claim(0, False)

    with socket.create_server(("127.0.0.1", 0)) as silent, reserve_port() as refusing:
        ports = [one.getsockname()[1] for one in (silent, refusing)]
        asyncio.run(run(*(f"http://127.0.0.1:{port}" for port in ports)))


def test_the_key_goes_to_one_owner_and_its_revision_is_the_epoch(server: EtcdServer) -> None:
    async def run() -> None:
        async with store_of(server.endpoints, "a") as a, store_of(server.endpoints, "b") as b:
            first = await a.claim(0, False)
            assert isinstance(first, Held)
            (found,) = server.call("/v3/kv/range", {"key": KEY})["kvs"]
            assert int(found["create_revision"]) == first.epoch
            assert base64.b64decode(found["value"]).endswith(b":a")
            assert await b.claim(0, False) == Taken("a", first.epoch, 2)
            assert isinstance(await a.renew(first.epoch), Held)
            # A claim whose reply was lost finds its own key, and is a new leadership.
            again = await a.claim(first.epoch, False)
            assert isinstance(again, Held)
            assert again.epoch > first.epoch
            assert await b.renew(first.epoch) == Taken("a", again.epoch, 2)
            await a.release()
            assert await a.renew(again.epoch) == Vacant()
            won = await b.claim(again.epoch, False)
            assert isinstance(won, Held)
            assert won.epoch > again.epoch
            await b.release()
            assert isinstance(await b.claim(10**9, True), Regressed)
            assert "kvs" not in server.call("/v3/kv/range", {"key": KEY})

    asyncio.run(run())


def test_a_key_deleted_by_hand_is_created_again_with_a_higher_epoch(server: EtcdServer) -> None:
    async def run() -> None:
        async with EtcdElection(server.endpoints, "a", lease=LEASE) as election:
            await wait_for_leader([election])
            epoch = election.epoch
            server.call("/v3/kv/deleterange", {"key": KEY})
            await wait_until(lambda: election.epoch > epoch and election.is_leader)

    asyncio.run(run())


def test_etcd_raises_a_lease_below_its_minimum(tmp_path: Path) -> None:
    async def run(endpoints: list[str]) -> None:
        async with store_of(endpoints, "a", lease=1.0, timeout=0.9) as store:
            won = await store.claim(0, False)
            assert isinstance(won, Held)
            assert won.lease == 2
        assert EtcdElection(endpoints, "a", lease=1.2)._candidacy._lease == 2

    server = EtcdServer(tmp_path, "--election-timeout", "1000")
    try:
        asyncio.run(run(server.endpoints))
    finally:
        server.close()


def test_an_etcd_that_has_lost_its_data_elects_nobody_below_a_known_epoch(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def put(times: int) -> None:
        for _ in range(times):
            server.call("/v3/kv/put", {"key": "eA==", "value": "eA=="})

    async def run() -> None:
        electorate = EtcdElectorate(server, LEASE)
        leaderships = Leaderships(electorate)
        async with campaigning(electorate) as candidates, leaderships.watching(*candidates):
            await wait_for_leader(candidates)
            await wait_until(lambda: all(one.epoch for one in candidates))
            epoch = max(one.epoch for one in candidates)
            server.kill()
            shutil.rmtree(tmp_path / "m0")
            server.start()
            # Once all know it, the old leader has stopped, and the others wait for one lease.
            lines = [f"election of {one.name}: the store has lost data" for one in candidates]
            await wait_until(lambda: all(line in caplog.text for line in lines))
            assert not [one for one in candidates if one.is_leader]
            put(100)
            assert (await wait_for_leader(candidates)).epoch > epoch

    server = EtcdServer(tmp_path)
    put(20)
    try:
        asyncio.run(run())
    finally:
        server.close()


def test_a_frozen_leader_wakes_up_as_a_standby(server: EtcdServer) -> None:
    async def run(process: "subprocess.Popen[str]") -> None:
        output = Output(process.stdout)
        await asyncio.to_thread(output.wait_for, "leads")
        async with EtcdElection(server.endpoints, "b", group="frozen", lease=LEASE) as standby:
            freeze(process)
            await wait_for_leader([standby])
            written = len(output.lines())
            thaw(process)
            await wait_until(lambda: len(output.lines()) > written)
            assert output.lines()[written].startswith("stands by")

    command = [sys.executable, "-m", "tests.election.campaign"]
    with subprocess.Popen(
        [*command, "etcd", ",".join(server.endpoints), "a", "frozen"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            asyncio.run(run(process))
        finally:
            process.kill()


FREE = {"header": {"revision": "5"}}
GRANTED = {"ID": "1", "TTL": "2"}
TAKEN = {"create_revision": "3", "value": "eA==", "lease": "7"}


def of_txn(**changes: object) -> dict[str, object]:
    return {"responses": [{"response_range": {"kvs": [TAKEN | changes]}}]}


@asynccontextmanager
async def answering(*replies: object) -> AsyncIterator[str]:
    """An HTTP server that gives these replies one after the other, the last one for ever.

    A reply is a body, or a status and a body; what is no str is sent as JSON.
    """
    left = list(replies)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while head := await reader.readuntil(b"\r\n\r\n"):
            length = int(head.lower().split(b"content-length:")[1].split()[0])
            await reader.readexactly(length)
            reply = left.pop(0) if len(left) > 1 else left[0]
            status, body = reply if isinstance(reply, tuple) else (200, reply)
            raw = (body if isinstance(body, str) else json.dumps(body)).encode()
            writer.write(b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n" % (status, len(raw)) + raw)

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await answer(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


@pytest.mark.parametrize(
    ("replies", "kind", "message"),
    [
        (["no JSON"], ProtocolError, "invalid reply from etcd at http.*no JSON"),
        (["[]"], ProtocolError, "invalid reply"),
        (["[" * 50_000], ProtocolError, "invalid reply"),
        (['"' + "x" * 70_000 + '"'], ProtocolError, "larger than 65536 bytes"),
        ([{}], ProtocolError, "invalid header: None"),
        ([{"header": {"revision": "-1"}}], ProtocolError, "invalid revision: '-1'"),
        ([{"header": {"revision": "9" * 19}}], ProtocolError, "invalid revision"),
        ([{"header": {}, "kvs": [1, 2]}], ProtocolError, "invalid kvs"),
        ([{"header": {}, "kvs": [TAKEN | {"value": "?"}]}], ProtocolError, "invalid value: '[?]'"),
        ([{"header": {}, "kvs": [TAKEN | {"lease": True}]}], ProtocolError, "invalid lease: True"),
        ([FREE, {"ID": "1"}], ProtocolError, "invalid TTL: None"),
        ([FREE, {"TTL": "1"}], ProtocolError, "a lease of 2 s or more was asked for, got 1 s"),
        ([FREE, {"TTL": "4000"}], ProtocolError, "invalid TTL: 4000"),
        ([FREE, GRANTED, {}], ProtocolError, "invalid responses: None"),
        ([FREE, GRANTED, of_txn(create_revision=None)], ProtocolError, "invalid create_revision"),
        ([(404, "Not Found")], ConfigError, "etcd 3.4 or newer is needed"),
        ([(500, "oops")], ProtocolError, "invalid reply from etcd at http.*oops"),
        ([(503, {"code": 14, "message": "no leader"})], Unavailable, r"no leader \(code 14\)"),
        ([{"error": {"grpc_code": 14}}], Unavailable, "grpc_code"),
    ],
)
def test_invalid_replies_are_errors_that_show_them(
    replies: list[object], kind: type[SluicegateError], message: str
) -> None:
    async def run() -> None:
        async with answering(*replies) as url, store_of(url, "a") as store:
            with pytest.raises(kind, match=message):
                await store.claim(0, False)

    asyncio.run(run())


def test_a_lost_race_for_the_key_is_a_lease_of_another() -> None:
    async def run() -> None:
        async with answering(FREE, GRANTED, of_txn(), {}) as url, store_of(url, "a") as store:
            assert await store.claim(0, False) == Taken("x", 3, 2)

    asyncio.run(run())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"endpoints": []}, "endpoints must have at least one URL"),
        ({"endpoints": "localhost:2379"}, "must be like http://etcd-1:2379, got 'localhost:2379'"),
        ({"endpoints": "http://a:x"}, "must be like http://etcd-1:2379, got 'http://a:x'"),
        ({"endpoints": "http://a:1/v3"}, "must be like http://etcd-1:2379"),
        ({"endpoints": "http://u:secret@a:1"}, "must not contain a login"),
        ({"name": ""}, "name must not be empty"),
        ({"lease": 0.5}, "lease must be from 1 to 3600, got 0.5"),
        ({"timeout": 0}, "timeout must be from 0.001 to 2, got 0"),
        ({"user": "app"}, "user and password must be given together, got no password"),
    ],
)
def test_wrong_arguments_raise_at_once(arguments: dict[str, object], message: str) -> None:
    given = {"endpoints": "http://127.0.0.1:2379", "name": "a"} | arguments
    with pytest.raises(ValueError, match=message) as caught:
        EtcdElection(**given)  # type: ignore[arg-type]
    assert "secret" not in str(caught.value)


def test_other_elections_do_not_import_httpx() -> None:
    code = (
        "import sys, sluicegate.election as election\n"
        "election.Alone, election.RedisElection\n"
        "assert 'httpx' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=PATIENCE)
