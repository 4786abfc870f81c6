"""`HealthChecks`: the schedule in virtual time, and its threads and tasks."""

import asyncio
import threading
from collections import Counter

import pytest

from sluicegate import ManualClock, SystemClock
from sluicegate.balance import HealthChecks, RoundRobin, Server
from sluicegate.balance.health_checks import CheckSchedule
from tests.harness.children import Children
from tests.harness.waits import wait_for, wait_until


def states(balancer: RoundRobin) -> list[str]:
    return [one.state for one in balancer.status()]


def addresses(due: list[tuple[Server, int]]) -> str:
    return "".join(server.address for server, _ in due)


def test_each_server_is_checked_once_per_interval_at_its_own_moment() -> None:
    schedule = CheckSchedule(RoundRobin(["a", "b"]), interval=10.0)
    checked = []
    for half_second in range(60):
        now = 100 + 0.5 * half_second
        for server, run in schedule.take_due(now):
            checked.append((server.address, now))
            schedule.finish(server, run, None, now)
    assert checked == [
        ("a", 100.0),
        ("b", 105.0),
        ("a", 110.0),
        ("b", 115.0),
        ("a", 120.0),
        ("b", 125.0),
    ]
    assert schedule.next_time(129.5) == 130.0


def turn(schedule: CheckSchedule, now: float, problem: str | None) -> None:
    for server, run in schedule.take_due(now):
        schedule.finish(server, run, problem, now)


def test_a_server_falls_after_three_failed_checks_and_rises_after_two_passed_ones() -> None:
    balancer = RoundRobin(["a"])
    schedule = CheckSchedule(balancer, interval=1.0, fall=3, rise=2)
    seen = []
    for now, problem in enumerate(["x", "x", None, "x", "x", "x", "x", None, "x", None, None]):
        turn(schedule, float(now), problem)
        seen.append(states(balancer)[0])
    assert seen == ["up"] * 5 + ["unhealthy"] * 5 + ["starting"]


def test_a_check_that_takes_too_long_has_failed_and_its_late_result_counts_for_nothing() -> None:
    balancer = RoundRobin(["a"])
    schedule = CheckSchedule(balancer, interval=5.0, timeout=2.0, fall=1, rise=1)
    ((server, first),) = schedule.take_due(0.0)
    assert schedule.take_due(1.9) == []
    assert schedule.next_time(1.9) == 2.0
    assert schedule.take_due(2.0) == []
    assert states(balancer) == ["unhealthy"]
    assert schedule.take_due(5.0) == []  # the first one still hangs: there is never a second one
    schedule.finish(server, first, None, 5.1)
    assert states(balancer) == ["unhealthy"]
    ((_, second),) = schedule.take_due(10.0)
    schedule.finish(server, second, None, 10.1)
    assert states(balancer) == ["starting"]


def test_servers_that_come_and_go_are_checked_or_not() -> None:
    balancer = RoundRobin(["a", "b"])
    schedule = CheckSchedule(balancer, interval=1.0, timeout=60.0, fall=1)
    (going, *_) = schedule.take_due(0.0)
    balancer.remove("a")
    schedule.finish(*going, "gone", 0.1)
    balancer.add("c")
    assert addresses(schedule.take_due(2.0)) == "b"  # `c` has its moment half an interval later
    assert addresses(schedule.take_due(2.5)) == "c"
    balancer.add("a")
    schedule.take_due(3.0)
    assert addresses(schedule.take_due(4.0)) == "a"  # and the others still run


@pytest.mark.parametrize("act", ["mark_up", "add again", "mark_down and mark_up"])
def test_a_server_that_goes_on_failing_is_unhealthy_again_whatever_was_done_by_hand(
    act: str,
) -> None:
    balancer = RoundRobin(["a", "b", "c"])
    schedule = CheckSchedule(balancer, interval=1.0, fall=2)

    def check(begin: int, turns: int) -> None:
        for now in range(begin, begin + turns):
            for server, run in schedule.take_due(now + 0.9):
                problem = "x" if server.address == "a" else None
                schedule.finish(server, run, problem, now + 0.95)

    def state() -> str:
        return next(one.state for one in balancer.status() if one.server.address == "a")

    check(0, 5)
    assert state() == "unhealthy"
    if act == "mark_up":
        balancer.mark_up("a")
    elif act == "add again":
        balancer.remove("a")
        balancer.add("a")
    else:
        balancer.mark_down("a")
        balancer.mark_up("a")
    assert state() == "up"
    check(5, 5)
    assert state() == "unhealthy"


def test_the_check_of_a_server_that_was_removed_says_nothing_of_a_new_one() -> None:
    balancer = RoundRobin(["a"])
    schedule = CheckSchedule(balancer, interval=1.0, fall=1)
    ((server, old),) = schedule.take_due(0.0)
    balancer.remove("a")
    schedule.take_due(0.1)
    balancer.add("a")
    ((_, new),) = schedule.take_due(0.2)
    schedule.finish(server, old, "x", 0.3)
    assert states(balancer) == ["up"]
    schedule.finish(server, new, "x", 0.4)
    assert states(balancer) == ["unhealthy"]


@pytest.mark.parametrize("is_async", [False, True])
def test_a_check_that_hangs_has_one_thread_and_holds_up_no_other(is_async: bool) -> None:
    balancer = RoundRobin(["well", "hanging"])
    hang, calls = threading.Event(), Counter[str]()

    def check(server: Server) -> bool:
        calls[server.address] += 1
        if server.address == "hanging":
            hang.wait()
        return True

    def is_seen() -> bool:
        return calls["well"] >= 10 and states(balancer) == ["up", "unhealthy"]

    checks = HealthChecks(balancer, check, interval=0.02, timeout=0.02, fall=1)
    if is_async:

        async def main() -> None:
            async with checks:
                await wait_until(is_seen)

        asyncio.run(main())
    else:
        with checks:
            wait_for(is_seen)
    assert calls["hanging"] == 1
    hang.set()


def test_checks_go_on_after_a_failure_of_their_own() -> None:
    class Clock(SystemClock):
        fails = True

        def now(self) -> float:
            if self.fails:
                self.fails = False
                raise OSError("no time")
            return super().now()

    balancer = RoundRobin(["a"])
    with HealthChecks(balancer, lambda _: False, interval=0.01, fall=1, clock=Clock()):
        wait_for(lambda: states(balancer) == ["unhealthy"])


def test_a_forked_child_checks_when_it_is_started_again(children: Children) -> None:
    balancer = RoundRobin(["a"])
    checks = HealthChecks(balancer, lambda _: False, interval=0.01, fall=1)
    checks.start()
    wait_for(lambda: states(balancer) == ["unhealthy"])

    def child() -> None:
        balancer.mark_up("a")
        checks.start()
        wait_for(lambda: states(balancer) == ["unhealthy"])

    children.start(child)
    children.join()
    checks.close()


def test_a_function_that_returns_a_coroutine_is_no_passed_check() -> None:
    async def ask() -> bool:
        return True

    balancer = RoundRobin(["a"])
    with HealthChecks(balancer, lambda _: ask(), interval=0.01, fall=1):
        wait_for(lambda: states(balancer) == ["unhealthy"])


def test_threads_check_and_a_check_that_hangs_holds_up_no_other() -> None:
    balancer = RoundRobin(["well", "ill", "hanging"])
    hang = threading.Event()

    def check(server: Server) -> bool:
        if server.address == "hanging":
            hang.wait()
        if server.address == "ill":
            raise ConnectionRefusedError("nobody listens")
        return True

    checks = HealthChecks(balancer, check, interval=0.05, timeout=0.05, fall=2)
    with checks:
        wait_for(lambda: states(balancer) == ["up", "unhealthy", "unhealthy"])
        hang.set()
        wait_for(lambda: states(balancer)[1:] in (["unhealthy", "starting"], ["unhealthy", "up"]))
    checks.close()
    with pytest.raises(RuntimeError, match="closed"):
        checks.start()


@pytest.mark.parametrize("is_async", [True, False])
def test_tasks_check_too(is_async: bool) -> None:
    balancer = RoundRobin(["well", "ill"])

    async def check_async(server: Server) -> bool:
        await asyncio.sleep(0)
        return server.address == "well"

    def check(server: Server) -> bool:
        return server.address == "well"

    async def main() -> None:
        chosen = check_async if is_async else check
        async with HealthChecks(balancer, chosen, interval=0.01, fall=2):
            await wait_until(lambda: states(balancer) == ["up", "unhealthy"])

    asyncio.run(main())


def test_a_coroutine_function_needs_async_with() -> None:
    async def check(server: Server) -> bool:
        return True

    with pytest.raises(TypeError, match="use `async with`"):
        HealthChecks(RoundRobin(["a"]), check).start()


def test_checks_in_virtual_time_need_no_waiting(clock: ManualClock) -> None:
    balancer = RoundRobin(["a", "b"], clock=clock)
    ill = {"b"}

    async def check(server: Server) -> bool:
        return server.address not in ill

    async def main() -> list[list[str]]:
        seen = []
        async with HealthChecks(balancer, check, interval=5.0, fall=3, rise=2, clock=clock):
            for _ in range(5):
                await clock.sleep_async(9.0)
                seen.append(states(balancer))
                if clock.now() > 20:
                    ill.clear()
        return seen

    assert asyncio.run(main()) == [
        ["up", "up"],
        ["up", "unhealthy"],
        ["up", "unhealthy"],
        ["up", "starting"],
        ["up", "up"],
    ]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"interval": 0}, "interval must be"),
        ({"timeout": -1}, "timeout must be"),
        ({"rise": 0}, "rise must be from 1"),
        ({"fall": 0}, "fall must be from 1"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        HealthChecks(RoundRobin(["a"]), lambda server: True, **options)  # type: ignore[arg-type]


def test_what_is_no_balancer_or_no_function_is_refused() -> None:
    with pytest.raises(TypeError, match="balancer must be a Balancer, got .'a'."):
        HealthChecks(["a"], lambda server: True)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="check must be a function of a Server, got 7"):
        HealthChecks(RoundRobin(["a"]), 7)  # type: ignore[arg-type]
