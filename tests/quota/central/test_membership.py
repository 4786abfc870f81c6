"""The members of an election, as they are given: what is accepted, and what each mistake says."""

from pathlib import Path
from typing import Any

import pytest

from sluicegate.errors import ConfigError
from sluicegate.quota import Central
from sluicegate.quota.central.membership import check_membership, parse_peers
from tests.harness.central import LIMITS

PEERS = {"a": "ws://10.0.0.1:7411", "b": "http://10.0.0.2:7411/", "c": "wss://c.example"}


def test_all_members_are_given_the_same_list() -> None:
    text = "a=ws://10.0.0.1:7411, b=http://10.0.0.2:7411/,c=wss://c.example"
    assert parse_peers(text) == PEERS
    member = check_membership("b", parse_peers(text), "paxos", 3.0, "/var/lib/b.state")
    assert member is not None
    assert member.peers == {"a": "ws://10.0.0.1:7411/", "c": "wss://c.example/"}
    assert member.path == Path("/var/lib/b.state.election")
    assert member.lease == 3.0


def test_without_peers_and_election_a_central_is_its_own() -> None:
    assert check_membership("central", None, None) is None
    assert check_membership("central", {}, None) is None


@pytest.mark.parametrize("election", ["etcd://e1:2379,e2:2379", "redis://r/0", "rediss://r"])
def test_with_a_store_neither_peers_nor_a_file_are_needed(election: str) -> None:
    member = check_membership("a", None, election)
    assert member is not None
    assert (member.peers, member.path, member.is_paxos) == ({}, None, False)


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"election": None}, "3 peers but no election: expected --election paxos, etcd://"),
    ({"election": None, "peers": None, "lease": 3.0}, "a lease of 3.0 s but no election"),
    ({"election": "raft"}, "invalid election: expected paxos, etcd://.* got 'raft'"),
    ({"peers": None}, "needs 2 members or more, better 3: expected --peers .* got 0"),
    ({"peers": {"a": "ws://x"}}, "needs 2 members or more, better 3: .* got 1"),
    ({"name": "d"}, "expected --name to be one of a, b, c, got 'd'"),
    ({"state": None}, "expected --state FILE"),
    ({"lease": 0.1}, "invalid lease: expected 0.4 to 60 s, got 0.1"),
    ({"lease": float("nan")}, "invalid lease: expected 0.4 to 60 s, got nan"),
    ({"peers": PEERS | {"d e": "ws://x"}}, "letters, digits, .* got 'd e'"),
    ({"peers": PEERS | {"d": "redis://x"}}, "invalid URL of peer d: .* got 'redis://x'"),
    ({"peers": PEERS | {"d": "wss://c.example/"}}, "peers must have different URLs"),
    ({"peers": {"a": "ws://a"} | {f"m{n}": f"ws://m{n}" for n in range(15)}}, "at most 15 peers"),
]


@pytest.mark.parametrize(("change", "text"), WRONG)
def test_each_wrong_combination_says_what_was_expected(change: dict[str, Any], text: str) -> None:
    options: dict[str, Any] = {
        "name": "a",
        "peers": PEERS,
        "election": "paxos",
        "lease": 2.0,
        "state": "a.state",
    }
    with pytest.raises(ConfigError, match=text):
        check_membership(**(options | change))


@pytest.mark.parametrize(
    ("text", "expected"),
    [("a", "expected NAME=URL,.* got 'a'"), ("a=ws://x,a=ws://y", "'a' is listed twice")],
)
def test_peers_that_are_none(text: str, expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        parse_peers(text)


def test_peers_of_other_machines_need_a_token() -> None:
    options: dict[str, Any] = {
        "name": "a",
        "listen": "10.0.0.1:7411",
        "node_token": "node-secret-1",
        "admin_token": "admin-secret-2",
        "peers": PEERS,
        "election": "paxos",
        "state": "a.state",
    }
    for listen in (
        "10.0.0.1:7411",
        "127.0.0.1:7411",
    ):  # with tokens, peers on one host have one too
        options["listen"] = listen
        with pytest.raises(ConfigError, match='token of the peers is missing: add peer = "..."'):
            Central(LIMITS, **options)
    Central(LIMITS, **options, peer_token="peer-secret-3")
    with pytest.raises(ConfigError, match="a peer CA file .* but no peers"):
        Central(LIMITS, peer_ca="ca.pem")
