"""When the reporter thread runs: at once for asks that may be sent, else as little as it can."""

import asyncio
import itertools
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sluicegate import Node
from sluicegate.quota import Entry
from sluicegate.quota.messages import Ask, Report
from sluicegate.quota.node.link import Link
from sluicegate.quota.node.reporter_thread import AskWatcher, ReporterThread
from tests.harness.threads import start_thread
from tests.harness.waits import PATIENCE, wait_for

MakeCentral = Callable[..., Any]
ONE = {"requests": 1.0}


def make_node(url: str, tmp_path: Path) -> Node:
    return Node(url, node_id="web", services=["front"], shared=str(tmp_path / "memory"))


def is_heard(node: Node) -> bool:
    return node._user_table.header.wait_seconds > 0.0


def test_an_idle_node_hardly_runs(
    make_central: MakeCentral, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns = 0
    sleep = ReporterThread._sleep

    async def counted_sleep(thread: ReporterThread, now: float, watcher: AskWatcher) -> None:
        nonlocal turns
        turns += 1
        await sleep(thread, now, watcher)

    monkeypatch.setattr(ReporterThread, "_sleep", counted_sleep)
    with make_node(make_central().url, tmp_path) as node:
        wait_for(lambda: is_heard(node))
        turns, began = 0, time.monotonic()
        time.sleep(1.0)  # a real second, in which nothing is to be done but one report
        assert turns <= 30.0 * (time.monotonic() - began)


def test_asks_are_sent_no_more_often_than_the_leader_says(
    make_central: MakeCentral, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[float] = []
    send = Link.send

    def noted_send(link: Link, message: Report | Ask) -> None:
        if isinstance(message, Ask):
            asked.append(message.sent)
        send(link, message)

    monkeypatch.setattr(Link, "send", noted_send)
    thin = Entry("front", "*", rates={"requests": 1.0}, burst_seconds=1.0)
    with make_node(make_central(thin).url, tmp_path) as node:
        wait_for(lambda: is_heard(node))
        users = (f"user-{number}" for number in range(1_000_000))

        def has_asked_often() -> bool:
            node.allows("front", next(users), ONE)
            return len(asked) >= 8

        wait_for(has_asked_often, seen=lambda: asked)
    gaps = [later - earlier for earlier, later in itertools.pairwise(asked)]
    assert min(gaps) >= 0.05 - 1e-6


def test_a_watcher_tells_of_asks_once_each_time_it_is_asked_to(tmp_path: Path) -> None:
    node = make_node("ws://127.0.0.1:9", tmp_path)
    other = make_node("ws://127.0.0.1:9", tmp_path)  # as another process has it
    header = node._user_table.header
    told = 0

    async def until(number: int) -> None:
        loop = asyncio.get_running_loop()
        end = loop.time() + PATIENCE
        while told < number:
            assert loop.time() < end, f"told {told} times, expected {number}"
            await asyncio.sleep(0.001)

    async def story() -> None:
        def tell() -> None:
            nonlocal told
            told += 1

        watcher = AskWatcher(header, asyncio.get_running_loop(), tell)
        watcher.stop()  # before its thread was started
        watcher = AskWatcher(header, asyncio.get_running_loop(), tell)
        for number, user in enumerate(("ann", "bob", "cid"), 1):
            watcher.watch()
            assert told == number - 1
            other.allows("front", user, ONE)  # of whom no leader has told: the node asks
            await until(number)
            assert header.take_asks() == [("front", user)]
        other.allows("front", "dan", ONE)  # nobody has asked to be told
        watcher.watch()
        await until(4)  # also of what came before
        watcher.stop()

    asyncio.run(story())
    assert told == 4
    assert not any(thread.name == "sluicegate-node-asks" for thread in threading.enumerate())
    other.close()
    node.close()


def test_a_watcher_can_be_stopped_at_any_time(tmp_path: Path) -> None:
    node = make_node("ws://127.0.0.1:9", tmp_path)
    is_done = threading.Event()

    async def story() -> None:
        for turn in range(200):
            watcher = AskWatcher(node._user_table.header, asyncio.get_running_loop(), lambda: None)
            watcher.watch()
            if turn % 2:
                node.allows("front", f"user-{turn}", ONE)
            watcher.stop()
        is_done.set()

    start_thread(lambda: asyncio.run(story()))
    assert is_done.wait(PATIENCE)
    node.close()
