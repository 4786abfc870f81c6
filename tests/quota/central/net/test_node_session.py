"""Nodes that speak sluicegate.v1 to a real server, over real sockets."""

import logging
import re
import socket
import struct
import time

import pytest
from websockets.sync.client import connect

from sluicegate.quota.messages import Ack, Ask, Credit, Quota, UserAsk
from tests.harness.central import SLOT, PlainNode, V1Node, closed_with, get, running, slot_of
from tests.harness.waits import wait_for


@pytest.mark.parametrize("binary", [True, False], ids=["binary", "JSON"])
def test_a_report_is_acknowledged_and_a_new_node_is_told_at_once(binary: bool) -> None:
    with running(name="c1") as central, V1Node(central, binary=binary) as node:
        assert node.socket.subprotocol == "sluicegate.v1"
        node.send(node.message(slot_of(central) - 1))
        ack, quota = node.read(), node.read()
        assert isinstance(ack, Ack)
        assert (ack.central, ack.leads, ack.boot, ack.sequence, ack.sent) == ("c1", True, 1, 1, 1.5)
        assert ack.time == pytest.approx(time.time(), abs=60)
        assert ack.epoch == pytest.approx(time.time(), abs=60)
        assert isinstance(quota, Quota)
        assert quota.whole
        assert quota.services["front"].newcomers["requests"] > 0


@pytest.mark.parametrize("binary", [True, False], ids=["binary", "JSON"])
def test_quotas_come_by_themselves_slot_after_slot(binary: bool) -> None:
    """A node that knows the epoch gets a quota at each assignment, and only then."""
    with running(slot_seconds=0.1) as central, V1Node(central, binary=binary) as node:
        epoch = node.report(slot_of(central) - 1).epoch
        assert isinstance(node.read(), Quota)  # what everyone has, at once
        quotas: list[Quota] = []

        def five_have_come() -> bool:
            """Report: a node that is silent for some slots gets no more quotas."""
            node.send(node.message(slot_of(central) - 1, epoch, ann=float(node.sequence)))
            while not isinstance(message := node.read(), Ack):
                quotas.append(message)
            return len(quotas) >= 5 and "ann" in quotas[-1].services["front"].users

        wait_for(five_have_come, seen=lambda: quotas)
        slots = [quota.slot for quota in quotas]
        assert slots == sorted(set(slots))
        assert all(quota.whole for quota in quotas)


def test_who_asks_is_answered_at_once() -> None:
    with running() as central, V1Node(central) as node:
        slot = slot_of(central)
        node.report(slot - 1)
        node.send(Ask("n", 1, 2.5, {"front": {"bob": UserAsk(3, {})}}))
        answer = node.read_until(lambda got: isinstance(got, Quota) and not got.whole)
        assert answer.services["front"].users["bob"]["requests"].granted == 3.0


def test_who_waits_for_credit_is_granted_it_in_turn_without_asking_again() -> None:
    with running() as central, V1Node(central) as node, V1Node(central, "other") as other:
        for each in (node, other):
            each.report(slot_of(central) - 1)

        def granted(to: V1Node) -> float:
            """What the next message with a grant says in all."""
            message = to.read_until(
                lambda got: isinstance(got, Quota) and "bob" in got.services["front"].users
            )
            return message.services["front"].users["bob"]["requests"].granted

        other.send(Ask("other", 1, 2.5, {"front": {"bob": UserAsk(1_000_000, {})}}))
        total = granted(other)
        credit = {"requests": Credit(total, 0.0, total, 1.0)}
        other.send(Ask("other", 1, 2.6, {"front": {"bob": UserAsk(1_000_000, credit)}}))
        node.send(Ask("n", 1, 2.5, {"front": {"bob": UserAsk(5, {})}}))
        while granted(node) == 0.0:
            pass
        while granted(other) == total:
            pass


def test_who_asks_for_many_is_told_of_all_of_them() -> None:
    with running() as central, V1Node(central) as node:
        slot = slot_of(central)
        node.report(slot - 1)
        missing = {f"user-{n}" for n in range(600)}
        users = {user: UserAsk(1, {}) for user in sorted(missing)}
        node.send(Ask("n", 1, 2.5, {"front": users, "nosuch": {"x": UserAsk(1, {})}}))
        while missing:
            answer = node.read_until(lambda got: isinstance(got, Quota) and not got.whole)
            if "front" in answer.services:
                missing -= set(answer.services["front"].users)


@pytest.mark.parametrize("is_cut", [False, True], ids=["it has said all", "it was cut off"])
def test_a_long_report_is_booked_whole_or_not_at_all(is_cut: bool) -> None:
    """It is worked on in steps, and its sender may be gone before the last of them."""
    with running() as central, V1Node(central) as node:
        assert central.registry is not None
        wait_for(central.registry.connections)  # the node hears of it a moment before it is noted
        ledger = central.registry.state.ledger
        users = {f"user-{n}": 5.0 for n in range(30_000)}
        node.send(node.message(slot_of(central) - 1, **users))
        raw = node.socket.socket
        if is_cut:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            raw.close()
        else:
            raw.shutdown(socket.SHUT_WR)
        wait_for(lambda: not central.registry.connections())
        assert ledger.cells in ((0, 30_000) if is_cut else (30_000,))
        assert ledger.booked("n", 1) == ledger.cells // 30_000


def test_a_fault_of_the_centrals_own_ends_one_connection_and_is_logged(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running() as central, V1Node(central, "other") as other, V1Node(central) as node:
        assert central.registry is not None
        other.report(slot_of(central) - 1)
        with monkeypatch.context() as patch:
            patch.setattr(central.registry.state, "receive", lambda *_: 1 / 0)
            node.send(node.message(slot_of(central) - 1))
            code, reason = closed_with(node.socket)
        assert (code, reason.partition(":")[0]) == (1011, "failed")
        assert "ZeroDivisionError" in caplog.text
        assert other.report(slot_of(central) - 1).leads


def test_the_log_has_a_line_for_each_node_that_comes_and_one_when_it_goes(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "sluicegate.quota")

    def told() -> list[str]:
        """The lines of nodes, without their ports."""
        lines = [re.sub(r":\d+, ", ":P, ", record.getMessage()) for record in caplog.records]
        return [line for line in lines if line.startswith(("node", "connection", "closing"))]

    story = [
        "node connected: 'a' (127.0.0.1:P, sluicegate.v1)",
        "node disconnected: 'a' (127.0.0.1:P, sluicegate.v1) "
        "(replaced: another connection of node a)",
        "node connected: 'a' (127.0.0.1:P, sluicegate.v1)",
        "node disconnected: 'a' (127.0.0.1:P, sluicegate.v1) (the node left)",
        "node connected: 'b\\n' (127.0.0.1:P, sluicegate.v1)",
        "node disconnected: 'b\\n' (127.0.0.1:P, sluicegate.v1) "
        "(connection closed, no leave message)",
        "node connected: 'old' (127.0.0.1:P, classic)",
        "node disconnected: 'old' (127.0.0.1:P, classic) (connection closed, no leave message)",
        "node connected: 'c' (127.0.0.1:P, sluicegate.v1)",
        "closing all connections (1): stopping",
    ]
    with running() as central:
        slot = slot_of(central)
        with V1Node(central, "a") as first, V1Node(central, "a") as second:
            first.report(slot)
            second.sequence = first.sequence
            second.report(slot)
            closed_with(first.socket)
            second.send(second.message(slot + 1)._replace(leaving=True))
            second.read_until(lambda got: isinstance(got, Ack))
        wait_for(lambda: told() == story[:4])
        with V1Node(central, "b\n") as node:
            node.report(slot)
            node.report(slot)
        wait_for(lambda: told() == story[:6])
        with PlainNode(central, "old") as classic:
            classic.report(classic.slot(), {})
        wait_for(lambda: told() == story[:8])
        with PlainNode(central) as looking:
            looking.ask({"monitor": "connections"})
        last = V1Node(central, "c")
        last.report(slot)
        wait_for(lambda: len(central.registry.connections()) == 1)
    last.socket.close()
    assert told() == story


def test_a_bad_frame_is_the_reason_why_a_node_goes(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "sluicegate.quota")
    with running() as central, V1Node(central) as node:
        node.report(slot_of(central))
        node.socket.send(b"nonsense")
        closed_with(node.socket)
    ended = [record.getMessage() for record in caplog.records if "bad frame" in record.getMessage()]
    assert len(ended) == 1
    assert "sluicegate.v1) (bad frame: " in ended[0]


def test_a_second_connection_of_a_node_replaces_the_first() -> None:
    with running() as central, V1Node(central, "n7") as first, V1Node(central, "n7") as second:
        first.report(slot_of(central) - 1)
        second.sequence = first.sequence
        second.report(slot_of(central) - 1)
        code, reason = closed_with(first.socket)
        assert (code, reason) == (4001, "replaced: another connection of node n7")
        second.report(slot_of(central) - 1)
        assert get(central, "/api/status")["connections"] == 1


def test_a_connection_speaks_for_one_node() -> None:
    with running() as central, V1Node(central, "n1") as node:
        node.report(slot_of(central) - 1)
        node.send(node.message(slot_of(central) - 1)._replace(node="n2"))
        code, reason = closed_with(node.socket)
        assert code == 1007
        assert reason == "bad frame: expected messages of node n1, got one of n2"


@pytest.mark.parametrize("frame", [b"", b"\xff" * 50, "[]", "{", "\x00"])
def test_a_malformed_frame_ends_its_own_connection_with_a_reason(frame: bytes | str) -> None:
    with running() as central, V1Node(central, "n1") as node, V1Node(central, "n2") as other:
        node.socket.send(frame)
        code, reason = closed_with(node.socket)
        assert code == 1007
        assert reason.startswith("bad frame: ")
        other.report(slot_of(central) - 1)


def test_reasons_are_cut_to_what_a_close_frame_holds() -> None:
    with running() as central, V1Node(central, "ä" * 90) as node:
        node.report(slot_of(central) - 1)
        node.send(node.message(slot_of(central) - 1)._replace(node="ö" * 90))
        code, reason = closed_with(node.socket)
        assert code == 1007
        assert len(reason.encode()) <= 120
        assert reason.endswith("...")


HANDSHAKES = [
    ({"subprotocols": ["mqtt"]}, "", "denied: expected the subprotocol sluicegate.v1 or none, got"),
    ({}, "/elsewhere", "denied: expected the path / or /throttle, got /elsewhere"),
    ({"origin": "http://evil.example"}, "", "denied: foreign origin http://evil.example"),
    (
        {
            "subprotocols": ["sluicegate.v1"],
            "additional_headers": {"Sluicegate-Slot-Seconds": "0.5"},
        },
        "",
        f"denied: expected slots of {SLOT:g} s, got 0.5",
    ),
    (
        {
            "subprotocols": ["sluicegate.v1"],
            "additional_headers": {"Sluicegate-Slot-Seconds": "soon"},
        },
        "",
        f"denied: expected slots of {SLOT:g} s, got soon",
    ),
]


def test_who_does_not_fit_is_told_why() -> None:
    with running() as central:
        for options, path, expected in HANDSHAKES:
            with connect(central.ws_url + path, **options) as socket:
                code, reason = closed_with(socket)
                assert code == 1008
                assert reason.startswith(expected)


def test_a_node_with_the_same_slots_or_of_our_own_origin_is_welcome() -> None:
    with running() as central:
        headers = {"Sluicegate-Slot-Seconds": str(SLOT)}
        with V1Node(central, additional_headers=headers) as node:
            node.report(slot_of(central) - 1)
        with PlainNode(central, origin=central.url) as plain:
            assert plain.report(plain.slot(), {})


def test_a_report_of_a_higher_epoch_makes_it_lead_in_one_above() -> None:
    """The clock of an earlier life was ahead: nodes would not listen to a lower epoch."""
    with running() as central, V1Node(central) as node:
        ahead = int(time.time()) + 365 * 86_400
        ack = node.report(slot_of(central) - 1, epoch=ahead)
        assert ack.epoch == ahead + 1
        assert ack.leads
        assert get(central, "/api/status")["epoch"] == ahead + 1


def test_a_life_that_is_over_is_not_told_anything() -> None:
    """Two nodes of one name, or a worker that goes on in memory that was removed."""
    with running() as central:
        with V1Node(central) as node:
            node.send(node.message(slot_of(central) - 1)._replace(boot=7))
            node.read_until(lambda got: isinstance(got, Ack))
        with V1Node(central) as older:
            older.send(older.message(slot_of(central) - 1)._replace(boot=6))
            code, reason = closed_with(older.socket)
        assert code == 1008
        assert reason.startswith("denied: node ")
        assert "has restarted since" in reason


def test_an_epoch_without_end_is_refused() -> None:
    with running() as central, V1Node(central) as node:
        node.send(node.message(slot_of(central) - 1, epoch=int(time.time()) + 11 * 365 * 86_400))
        code, reason = closed_with(node.socket)
        assert code == 1007
        assert reason.startswith("bad frame: ")


def test_connections_are_shown_and_forgotten() -> None:
    with running() as central:
        with V1Node(central, "n1") as node, PlainNode(central, "n2") as plain:
            node.report(slot_of(central) - 1)
            plain.report(plain.slot(), {})
            assert central.registry is not None
            shown = {each.node: each for each in central.registry.connections()}
            assert shown["n1"].kind == "sluicegate.v1"
            assert shown["n2"].kind == "classic"
            assert shown["n1"].frames == shown["n2"].frames == 1
            assert shown["n1"].last_slot is not None
            assert shown["n1"].quota_sent is not None
        wait_for(lambda: central.registry is not None and not central.registry.connections())


def test_one_port_serves_nodes_and_the_api() -> None:
    with running(name="c9") as central, V1Node(central) as node:
        node.report(slot_of(central) - 1, ann=3.0)
        status = get(central, "/api/status")
        assert (status["name"], status["role"], status["leader"]) == ("c9", "active", "c9")
        assert get(central, "/healthz").strip() == "ok"
        assert "sluicegate_central_reports_total 1.0" in get(central, "/metrics")
        assert [each["name"] for each in get(central, "/api/nodes")["nodes"]] == ["n"]


def test_a_quota_that_waited_is_not_sent_by_a_central_that_no_longer_leads() -> None:
    with running(name="c1") as central, V1Node(central) as node:
        epoch = node.report(slot_of(central) - 1).epoch
        registry = central.registry
        assert registry is not None
        (quota,) = [message for _, message in registry.state.announce(registry.now())]
        assert registry.may_send(quota)
        has_lease = [True]
        registry.state._has_lease = lambda: has_lease[0]  # as an election that has lost it
        has_lease[0] = False
        assert not registry.may_send(quota)
        registry.deliver([("n", quota)])
        ack = node.report(slot_of(central) - 1, epoch)
        assert not ack.leads
        has_lease[0] = True
        registry.state.follow(registry.now())
        registry.state.lead(registry.now(), epoch + 1)
        assert not registry.may_send(quota)  # it is of an earlier leadership
