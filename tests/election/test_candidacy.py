"""The timing rules of a lease, in virtual time."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicegate.election.candidacy import Candidacy, Held, Outcome, Regressed, Taken, Vacant

LEASE = 3.0
SAFE = LEASE * 0.99 / 1.01


def candidacy(jitter: float = 1.0) -> Candidacy:
    return Candidacy("a", LEASE, lambda: jitter)


def test_the_deadline_counts_from_before_the_request_was_sent() -> None:
    one = candidacy()
    one.apply(Held(sent=10.0, lease=LEASE, epoch=7), now=11.0)
    assert one.deadline == pytest.approx(10.0 + SAFE)
    assert one.confirmed == 10.0
    assert (one.epoch, one.leader(11.0)) == (7, "a")
    assert one.is_leader(10.0 + SAFE - 0.001)
    assert not one.is_leader(10.0 + SAFE)
    assert one.leader(10.0 + SAFE) is None


@pytest.mark.parametrize("rate", [0.99, 1.0, 1.01])
@pytest.mark.parametrize("store_rate", [0.99, 1.0, 1.01])
def test_the_deadline_is_before_the_end_of_the_lease_on_clocks_that_err(
    rate: float, store_rate: float
) -> None:
    one = candidacy()
    one.apply(Held(sent=0.0, lease=LEASE, epoch=1), now=0.0)
    assert one.deadline / rate <= LEASE / store_rate + 1e-9


def test_a_claim_that_is_answered_past_its_deadline_is_made_again() -> None:
    one = candidacy()
    one.apply(Held(sent=10.0, lease=LEASE, epoch=7), now=10.0 + SAFE)
    assert not one.is_leader(10.0 + SAFE)
    assert one.epoch == 7  # the next claim has to be above it
    assert one.next_at == 10.0 + SAFE


def test_a_leader_renews_at_a_third_of_the_lease_and_two_tries_fit_after_that() -> None:
    one = candidacy()
    one.apply(Held(10.0, LEASE, 7), now=10.1)
    assert one.next_at == pytest.approx(11.0)
    one.apply(Held(11.0, LEASE, 7), now=11.1)
    assert one.deadline == pytest.approx(11.0 + SAFE)
    timeout = LEASE / 4
    tries, now = 0, one.next_at
    while now < one.deadline:
        tries += 1
        one.fail(now + timeout)
        now = one.next_at
    assert tries == 3
    assert one.deadline == pytest.approx(11.0 + SAFE)  # failures extend nothing


def test_a_renewal_that_is_answered_past_the_deadline_does_not_revive_the_leadership() -> None:
    one = candidacy()
    one.apply(Held(10.0, LEASE, 7), now=10.0)
    one.apply(Held(sent=11.0, lease=LEASE, epoch=7), now=10.0 + SAFE + 0.5)
    assert not one.is_leader(13.5)
    assert one.next_at <= 13.5
    one.apply(Held(sent=13.5, lease=LEASE, epoch=8), now=13.5)
    assert one.is_leader(13.5)


@pytest.mark.parametrize("outcome", [Taken("b", 8, 2.0), Vacant(), Regressed(3, "")])
def test_a_lost_lease_ends_the_leadership_at_once(outcome: Outcome) -> None:
    one = candidacy()
    one.apply(Held(10.0, LEASE, 7), now=10.0)
    one.apply(outcome, now=11.0)
    assert not one.is_leader(11.0)
    assert one.epoch == (8 if isinstance(outcome, Taken) else 7)


def test_a_standby_knows_the_leader_until_its_lease_runs_out() -> None:
    one = candidacy()
    one.apply(Taken("b", 4, remaining=2.0), now=10.0)
    assert (one.leader(10.0), one.epoch) == ("b", 4)
    assert one.next_change(10.0) == 12.0
    assert one.leader(12.0) is None
    assert one.next_change(12.0) == math.inf


@pytest.mark.parametrize(
    ("remaining", "jitter", "next_at"),
    [
        (2.5, 1.0, 11.0),  # a third of the lease at most
        (2.5, 0.0, 10.5),
        (0.2, 1.0, 10.2),  # when it runs out
    ],
)
def test_a_standby_asks_when_the_lease_runs_out_and_in_between(
    remaining: float, jitter: float, next_at: float
) -> None:
    one = candidacy(jitter)
    one.apply(Taken("b", 4, remaining), now=10.0)
    assert one.next_at == pytest.approx(next_at)


def test_failures_back_off_up_to_a_third_of_the_lease() -> None:
    one = candidacy()
    delays = []
    for _ in range(6):
        one.fail(10.0)
        delays.append(one.next_at - 10.0)
    assert delays == pytest.approx([0.075, 0.15, 0.3, 0.6, 1.0, 1.0])
    one.apply(Vacant(), now=10.0)  # an answer of any kind ends it
    one.fail(10.0)
    assert one.next_at == pytest.approx(10.075)


def test_a_store_that_has_forgotten_is_claimed_one_lease_later() -> None:
    one = candidacy()
    one.apply(Taken("b", 9, 2.0), now=10.0)
    assert not one.may_reset(10.0)
    one.apply(Regressed(0, ""), now=11.0)
    assert one.next_at == 11.0 + LEASE
    one.apply(Regressed(0, ""), now=12.0)  # woken up early: the wait goes on
    assert one.next_at == 11.0 + LEASE
    assert not one.may_reset(13.9)
    assert one.may_reset(14.0)
    one.apply(Held(14.0, LEASE, 10), now=14.0)
    assert one.is_leader(14.0)
    assert not one.may_reset(20.0)


def test_what_arrives_after_a_resignation_changes_nothing() -> None:
    one = candidacy()
    one.apply(Held(10.0, LEASE, 7), now=10.0)
    one.resign()
    one.apply(Held(10.5, LEASE, 7), now=10.5)
    one.apply(Held(10.5, LEASE, 8), now=10.5)
    assert not one.is_leader(10.5)
    assert (one.leader(10.5), one.epoch) == (None, 7)


class Store:
    """A key with an expiry, on a clock that may run fast or slow."""

    def __init__(self, rate: float) -> None:
        self.rate = rate
        self.owner, self.epoch, self.until = "", 0, -math.inf

    def ask(self, name: str, sent: float, real: float) -> Outcome:
        now = real * self.rate
        if now < self.until and self.owner != name:
            return Taken(self.owner, self.epoch, self.until - now)
        if not (now < self.until and self.owner == name):
            self.owner, self.epoch = name, self.epoch + 1
        self.until = now + LEASE
        return Held(sent, LEASE, self.epoch)


steps = st.lists(
    st.tuples(
        st.integers(0, 2),  # the candidate
        st.floats(0.0, 1.5),  # how long until it asks
        st.floats(0.0, 1.0),  # how long the request takes
        st.floats(0.0, 4.0),  # how long the reply takes
        st.booleans(),  # whether the reply is lost
    ),
    max_size=40,
)


@given(
    steps,
    st.lists(st.sampled_from([0.99, 1.0, 1.01]), min_size=3, max_size=3),
    st.sampled_from([0.99, 1.0, 1.01]),
)
def test_never_two_leaders_whatever_the_delays_and_the_clock_rates(
    steps: list[tuple[int, float, float, float, bool]], rates: list[float], store_rate: float
) -> None:
    store = Store(store_rate)
    candidates = [Candidacy(str(number), LEASE) for number in range(3)]
    spans: list[tuple[int, float, float]] = []  # the epoch, and the real times of a leadership
    real = 0.0
    for number, pause, request, reply, is_lost in steps:
        real += pause
        one, rate = candidates[number], rates[number]
        outcome = store.ask(one.name, sent=real * rate, real=real + request)
        real += request + reply
        if not is_lost:
            one.apply(outcome, real * rate)
        if one.is_leader(real * rate):
            spans.append((one.epoch, real, one.deadline / rate))
    for epoch, begin, end in spans:
        for other, other_begin, other_end in spans:
            assert epoch == other or end <= other_begin + 1e-9 or other_end <= begin + 1e-9
