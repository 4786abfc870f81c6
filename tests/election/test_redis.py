"""`RedisElection` against a real Redis: what its keys are, and what happens when they are lost."""

import asyncio
import logging
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from sluicegate.election import RedisElection
from sluicegate.election.candidacy import Held, Regressed, Taken, Vacant
from sluicegate.errors import ConfigError
from tests.election.campaign import LEASE
from tests.harness.elections import Leaderships, RedisElectorate, campaigning, wait_for_leader
from tests.harness.servers import ROOT, RedisServer, freeze, thaw
from tests.harness.waits import Output, wait_until

KEY, EPOCH = "sluicegate:{election:default}:lease", "sluicegate:{election:default}:epoch"


@asynccontextmanager
async def store_of(server: RedisServer, name: str) -> AsyncIterator[RedisElection]:
    """A candidate whose store is called by hand."""
    election = RedisElection(server.url, name, timeout=2.0)
    try:
        yield election
    finally:
        await election._store.close()


def test_both_keys_have_one_hash_tag(redis_server: RedisServer) -> None:
    async def run() -> None:
        async with RedisElection(redis_server.url, "a", group="x{y}%", prefix="p:") as election:
            await wait_for_leader([election])
            with redis_server.client as client:
                tag = "p:{election:x%7By%7D%25}"
                assert sorted(client.keys("*")) == [f"{tag}:epoch", f"{tag}:lease"]
                assert client.get(f"{tag}:lease").endswith(":a")
                assert 0 < client.pttl(f"{tag}:lease") <= 2000
                assert client.pttl(f"{tag}:epoch") == -1
        with redis_server.client as client:
            assert client.keys("*") == [f"{tag}:epoch"]

    asyncio.run(run())


def test_the_scripts_give_the_lease_to_one_owner(redis_server: RedisServer) -> None:
    async def run() -> None:
        async with store_of(redis_server, "a") as a, store_of(redis_server, "b") as b:
            first = await a._store.claim(0, False)
            assert isinstance(first, Held)
            assert first.epoch == 1
            taken = await b._store.claim(0, False)
            assert isinstance(taken, Taken)
            assert (taken.leader, taken.epoch) == ("a", 1)
            assert 0 < taken.remaining <= 2.0
            assert isinstance(await b._store.renew(1), Taken)
            await b._store.release()  # of what is not its own
            assert isinstance(await a._store.renew(1), Held)
            # A claim whose reply was lost finds its own lease, and is a new leadership.
            again = await a._store.claim(1, False)
            assert isinstance(again, Held)
            assert again.epoch == 2
            await a._store.release()
            assert isinstance(await a._store.renew(2), Vacant)
            third = await b._store.claim(7, True)  # it knows more than Redis
            assert isinstance(third, Held)
            assert third.epoch == 8

    asyncio.run(run())


def test_a_redis_that_was_restarted_empty_gets_a_higher_epoch_and_never_two_leaders(
    redis_server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> None:
        electorate = RedisElectorate(redis_server, LEASE)
        leaderships = Leaderships(electorate)
        async with campaigning(electorate) as candidates, leaderships.watching(*candidates):
            for _ in range(2):
                leader = await wait_for_leader(candidates)
                epoch = leader.epoch
                await wait_until(lambda epoch=epoch: all(one.epoch >= epoch for one in candidates))
                redis_server.restart()
                await wait_until(
                    lambda epoch=epoch: any(
                        one.is_leader and one.epoch > epoch for one in candidates
                    )
                )
        with redis_server.client as client:
            stored = client.get(f"sluicegate:{{election:{electorate.group}}}:epoch")
            assert int(stored) >= leaderships.in_order()[-1].epoch >= 3

    asyncio.run(run())
    assert "the store has lost data" in caplog.text


def test_a_lease_deleted_by_hand_is_claimed_again_with_a_higher_epoch(
    redis_server: RedisServer,
) -> None:
    async def run() -> None:
        async with RedisElection(redis_server.url, "a", lease=LEASE) as election:
            await wait_for_leader([election])
            epoch = election.epoch
            with redis_server.client as client:
                client.delete(KEY)
                await wait_until(lambda: election.epoch > epoch and election.is_leader)
                client.delete(EPOCH)  # the next renewal writes it again
                await wait_until(lambda: int(client.get(EPOCH) or 0) >= election.epoch > epoch)

    asyncio.run(run())


def test_a_key_written_by_hand_is_nobodys_lease(redis_server: RedisServer) -> None:
    async def run() -> None:
        with redis_server.client as client:
            client.set(KEY, "maintenance")
            async with RedisElection(redis_server.url, "a", lease=LEASE) as election:
                await wait_until(lambda: election.leader == "maintenance")
                assert not election.is_leader
                client.delete(KEY)
                await wait_for_leader([election])

    asyncio.run(run())


def test_a_frozen_leader_wakes_up_as_a_standby(redis_server: RedisServer) -> None:
    async def run(process: "subprocess.Popen[str]") -> None:
        output = Output(process.stdout)
        await asyncio.to_thread(output.wait_for, "leads")
        async with RedisElection(redis_server.url, "b", lease=LEASE) as standby:
            freeze(process)
            await wait_for_leader([standby])
            assert standby.leader == "b"
            written = len(output.lines())
            thaw(process)
            await wait_until(lambda: len(output.lines()) > written)
            assert output.lines()[written].startswith("stands by")

    command = [sys.executable, "-m", "tests.election.campaign"]
    with subprocess.Popen(
        [*command, "redis", redis_server.url, "a", "default"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            asyncio.run(run(process))
        finally:
            process.kill()


@pytest.fixture
def locked_server(tmp_path: Path) -> Iterator[RedisServer]:
    config = tmp_path / "users.conf"
    config.write_text("user default on nopass ~* +ping\nuser app on >right ~* &* +@all\n")
    server = RedisServer(tmp_path, str(config))
    yield server
    server.close()


def test_a_wrong_password_stops_the_start(locked_server: RedisServer) -> None:
    async def run(login: str) -> None:
        url = locked_server.url.replace("//", f"//{login}@" if login else "//")
        async with RedisElection(url, "a", timeout=2.0) as election:
            await wait_for_leader([election])

    asyncio.run(run("app:right"))
    for login in ("app:wrong", ""):
        with pytest.raises(ConfigError, match=r"refuses the election: .*(WRONGPASS|NOPERM|perm)"):
            asyncio.run(run(login))


def test_a_redis_that_is_down_at_the_start_is_tried_again(
    redis_server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> None:
        redis_server.kill()
        async with RedisElection(redis_server.url, "a", lease=LEASE) as election:
            assert not election.is_leader
            assert election.leader is None
            redis_server.start()
            await wait_for_leader([election])

    caplog.set_level(logging.INFO, "sluicegate.election")
    asyncio.run(run())
    lines = [record.message for record in caplog.records]
    assert "cannot connect to Redis" in lines[0]
    assert "election of a: the store answers again" in lines


def test_a_password_that_is_refused_after_an_outage_is_logged(
    locked_server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> None:
        locked_server.kill()
        url = locked_server.url.replace("//", "//app:wrong@")
        async with RedisElection(url, "a", lease=LEASE):
            assert "cannot connect to Redis" in caplog.text
            locked_server.start()
            await wait_until(lambda: "refuses the election" in caplog.text)

    asyncio.run(run())


@pytest.mark.parametrize("wrong", ["inf", "-5", "nan", "9007199254740992", "1e300"])
def test_an_epoch_written_by_hand_that_has_no_next_one_is_passed_over(
    redis_server: RedisServer, wrong: str
) -> None:
    async def run() -> None:
        async with store_of(redis_server, "a") as a, store_of(redis_server, "b") as b:
            with redis_server.client as client:
                await a._store.claim(6, True)
                client.set(EPOCH, wrong)
                renewed = await a._store.renew(7)
                assert isinstance(renewed, Held)
                assert (renewed.epoch, client.get(EPOCH)) == (7, "7")
                client.set(EPOCH, wrong)
                await a._store.release()
                assert isinstance(await b._store.claim(7, False), Regressed)
                claimed = await b._store.claim(7, True)
                assert isinstance(claimed, Held)
                assert (claimed.epoch, client.get(EPOCH)) == (8, "8")

    asyncio.run(run())


@pytest.mark.parametrize(
    "reply", [b"+OK\r\n", b":1\r\n", b"*1\r\n:1\r\n", b"*4\r\n:9\r\n:1\r\n:1\r\n$0\r\n\r\n"]
)
def test_an_invalid_reply_gives_no_leadership(
    reply: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while await reader.read(4096):
                writer.write(reply)
        writer.close()

    async def run() -> None:
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        async with server:
            port = server.sockets[0].getsockname()[1]
            async with RedisElection(f"redis://127.0.0.1:{port}", "a") as election:
                assert not election.is_leader

    asyncio.run(run())
    assert "invalid reply from Redis to the script claim" in caplog.text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": ""}, "name must not be empty, got ''"),
        ({"name": "x" * 256}, "name must have at most 255 bytes"),
        ({"group": ""}, "group must not be empty"),
        ({"lease": 0.01}, "lease must be from 0.1 to 3600, got 0.01"),
        ({"lease": 1.0, "timeout": 2.0}, "timeout must be from 0.001 to 1, got 2.0"),
        ({"prefix": "{x}"}, "prefix must not contain braces"),
    ],
)
def test_wrong_arguments_raise_at_once(arguments: dict[str, object], message: str) -> None:
    given = {"url": "redis://127.0.0.1:1", "name": "a"} | arguments
    with pytest.raises(ValueError, match=message):
        RedisElection(**given)  # type: ignore[arg-type]


def test_a_candidate_campaigns_once(redis_server: RedisServer) -> None:
    async def run() -> None:
        election = RedisElection(redis_server.url, "a")
        await election.close()  # which was not started
        async with election:
            with pytest.raises(RuntimeError, match="started already"):
                await election.start()
        for _ in range(2):
            await election.close()

    asyncio.run(run())
