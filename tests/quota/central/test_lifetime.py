"""How a central begins and ends: in a loop, in a thread, and when it cannot."""

import asyncio
import gc
import json
import time

import pytest
from websockets.asyncio.client import connect as connect_async
from websockets.sync.client import connect

from sluicegate import Central as Exported
from sluicegate.errors import ConfigError, Unavailable
from sluicegate.quota import Central
from sluicegate.quota.central.net.registry import ConnectionRegistry
from tests.harness.central import LIMITS, PlainNode, V1Node, closed_with, running, slot_of
from tests.harness.waits import PATIENCE


def test_it_is_one_of_the_public_names() -> None:
    assert Exported is Central


def test_in_a_loop_of_ones_own() -> None:
    async def story() -> str:
        report = json.dumps({"node_id": "n", "slot_number": int(time.time())})
        async with (
            Central(LIMITS, listen="127.0.0.1:0") as central,
            connect_async(central.ws_url) as socket,
        ):
            await socket.send(report)
            return str(await asyncio.wait_for(socket.recv(), PATIENCE))

    assert asyncio.run(story()).startswith('{"front":')


def test_starting_twice_is_a_mistake_and_closing_twice_is_none() -> None:
    async def story() -> None:
        central = Central(LIMITS, listen="127.0.0.1:0")
        with pytest.raises(RuntimeError, match="not started"):
            _ = central.url
        await central.close()
        await central.start()
        with pytest.raises(RuntimeError, match="already started"):
            await central.start()
        await central.close()
        await central.close()
        await central.start()  # and a new life
        await central.close()

    asyncio.run(story())


def test_it_says_what_it_is() -> None:
    central = Central(LIMITS, name="c3", listen="127.0.0.1:0")
    assert repr(central) == "Central(c3, not started)"
    with central:
        assert repr(central).startswith(
            f"Central(c3, {central.url}, ConnectionRegistry(CentralState(c3, "
        )
        assert central.ws_url.startswith("ws://127.0.0.1:")


def test_ipv6() -> None:
    with running(listen="[::1]:0") as central, PlainNode(central) as node:
        assert central.url.startswith("http://[::1]:")
        assert node.report(node.slot(), {})


WRONG = [
    ({"listen": "7411"}, ConfigError, "expected HOST:PORT"),
    ({"listen": "127.0.0.1:"}, ConfigError, "expected HOST:PORT"),
    ({"listen": "127.0.0.1:65536"}, ConfigError, "expected HOST:PORT"),
    ({"listen": ":7411"}, ConfigError, "expected HOST:PORT"),
    ({"name": ""}, ValueError, "name must have 1 to 200 bytes"),
    ({"name": "n" * 201}, ValueError, "name must have 1 to 200 bytes"),
    ({"name": "one\ntwo"}, ValueError, "name must have no control characters"),
    ({"listen": "nosuch.invalid:0"}, ConfigError, "other machines may reach nosuch"),
    ({"slot_seconds": 0.05}, ValueError, "slot_seconds must be from 0.1"),
    ({"assignment": "best"}, ValueError, "assignment must be"),
    ({"max_connections": 0}, ValueError, "max_connections must be 1 or more"),
]


@pytest.mark.parametrize(("options", "kind", "text"), WRONG)
def test_what_makes_no_sense_raises_at_once(
    options: dict[str, object], kind: type[Exception], text: str
) -> None:
    with pytest.raises(kind, match=text):
        Central(LIMITS, **options)  # type: ignore[arg-type]


def test_limits_that_cannot_be_read_stop_the_start() -> None:
    with pytest.raises(ConfigError, match="nothing.toml"), running(limits="/nowhere/nothing.toml"):
        pass


def test_a_port_that_is_taken() -> None:
    with running() as central:
        listen = central.url.removeprefix("http://")
        taken = pytest.raises(Unavailable, match="cannot listen on 127.0.0.1:")
        with taken, running(listen=listen):
            pass


def test_a_stop_answers_what_has_come_in_and_tells_everyone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sluicegate.quota.central.server._DRAIN_SECONDS", PATIENCE)
    with running() as central:
        slot = slot_of(central) - 1
        with V1Node(central, max_queue=None) as node, connect(central.ws_url) as plain:
            node.report(slot)
            for _ in range(20):
                node.send(node.message(slot))
            node.send(node.message(slot, **{f"user-{n}": 1.0 for n in range(30_000)}))  # takes long
            central.__exit__(None, None, None)
            last = None
            with pytest.raises(Exception, match="1001 .going away. stopping"):
                while True:
                    message = node.read()
                    last = getattr(message, "sequence", last)
            assert last == node.sequence
            assert closed_with(plain) == (1001, "stopping")
        central.__enter__()


def test_nothing_is_left_behind() -> None:
    def registries() -> int:
        gc.collect()
        # By type: to ask some lazy objects of other libraries what they are would wake them.
        return sum(type(each) is ConnectionRegistry for each in gc.get_objects())

    before = registries()
    for _ in range(3):
        with running() as central, V1Node(central) as node:
            node.report(slot_of(central) - 1)
        del central
    assert registries() <= before + 1


def test_a_function_may_say_the_limits() -> None:
    with running(limits=lambda: LIMITS) as central, PlainNode(central) as node:
        assert "front" in node.report(node.slot(), {})
