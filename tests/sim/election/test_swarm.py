"""Elections under random faults in virtual time: 2,000 swarms; `make soak` runs 100,000 more."""

from collections import Counter

import pytest

from sluicegate.election.paxos.acceptor import Acceptor
from sluicegate.sim.election import member, run
from sluicegate.sim.election.random_runs import SWARMS
from tests.harness import paxos_mutants as weaker

# Whole swarms in virtual time, which take three times as long when they are traced.
pytestmark = pytest.mark.no_cover

PARTS = 4
PART = 500


@pytest.mark.parametrize("part", range(PARTS))
def test_one_leads_and_epochs_grow_whatever_fails(part: int) -> None:
    outcomes = SWARMS.run_many(range(part * PART, (part + 1) * PART))
    assert not any(outcome.violations for outcome in outcomes), SWARMS.table(outcomes)
    counts: Counter[str] = sum((outcome.counts for outcome in outcomes), Counter())
    assert [event for event in SWARMS.events if not counts[event]] == []
    assert counts["elections"] > 2 * PART
    assert counts["renewals"] > 5 * PART
    # Each swarm ends with a leader, also one in which all were cut off before.
    assert all(outcome.counts["elections"] for outcome in outcomes)


def test_a_seed_gives_the_same_run_again() -> None:
    assert run(17) == run(17)
    assert run(17).counts != run(18).counts


# Rules that were weakened: the audit must find each within a thousand swarms. Those that need
# several faults in a row are found by the schedules in tests/election/test_schedules.py.
MUTANTS = {
    "an acceptor votes at once after a start": (weaker.HastyAcceptor, "lead at once"),
    "a release matches the owner": (weaker.OwnerReleasingAcceptor, "lead at once"),
    "exclusion is no longer than the lease": (weaker.ShortExclusionAcceptor, "lead at once"),
    "a vote is sent before its epoch is durable": (weaker.EpochLosingAcceptor, "with epoch"),
    "only a timer ends leadership": (weaker.TimerProposer, "thawed and reads that it leads"),
    "votes are counted, not voters": (weaker.DoubleCountingProposer, "lead"),
    "a renewal counts after its lease": (weaker.LapsedRenewalProposer, "with epoch"),
    "a renewal that failed is released": (weaker.RenewalReleasingProposer, "lead at once"),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_weakened_rule_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant, sign = MUTANTS[name]
    original = "Acceptor" if issubclass(mutant, Acceptor) else "Proposer"
    monkeypatch.setattr(member, original, mutant)
    for seed in range(1000):
        if any(sign in what for what in run(seed).violations):
            return
    pytest.fail(f"no swarm of 1000 found that {name}")


def test_a_candidate_that_never_tries_again_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    class Resigned(member.Proposer):
        def _fail(self, now, attempt):  # type: ignore[no-untyped-def]
            messages = super()._fail(now, attempt)
            self._try_at = float("inf")
            return messages

    monkeypatch.setattr(member, "Proposer", Resigned)
    found = [what for seed in range(20) for what in run(seed).violations]
    assert any("after the faults have ended" in what for what in found)


def test_a_violation_is_shown_with_the_command_that_replays_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(member, "Proposer", weaker.TimerProposer)
    outcomes = SWARMS.run_many(range(50))
    broken = next(outcome for outcome in outcomes if outcome.violations)
    text = SWARMS.table(outcomes)
    assert f"VIOLATED: {SWARMS.replay_command(broken.seed)}\n" in text
    assert broken.violations[0] in text
