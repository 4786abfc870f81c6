from sluicegate.sim.world import World


def test_acts_happen_in_the_order_of_their_times() -> None:
    world = World()
    told: list[tuple[float, str]] = []
    for time, what in [(3.0, "c"), (1.0, "a"), (2.0, "b")]:
        world.at(time, lambda what=what: told.append((world.now, what)))
    world.run(10.0)
    assert told == [(1.0, "a"), (2.0, "b"), (3.0, "c")]
    assert world.now == 10.0


def test_of_two_acts_at_one_moment_the_one_planned_first_comes_first() -> None:
    world = World()
    told: list[str] = []
    for name in "abcdef":
        world.at(1.0, told.append, name)
    world.run(2.0)
    assert "".join(told) == "abcdef"


def test_an_act_may_plan_another_and_a_late_one_comes_next() -> None:
    world = World()
    told: list[tuple[float, str]] = []

    def first() -> None:
        world.at(0.5, lambda: told.append((world.now, "late")))
        world.at(1.5, lambda: told.append((world.now, "later")))

    world.at(1.0, first)
    world.run(2.0)
    assert told == [(1.0, "late"), (1.5, "later")]


def test_what_is_planned_for_the_end_or_after_it_waits() -> None:
    world = World()
    told: list[float] = []
    world.at(5.0, lambda: told.append(world.now))
    world.run(5.0)
    assert told == []
    world.run(5.1)
    assert told == [5.0]


def test_the_dice_are_the_same_for_the_same_seed_and_differ_between_streams() -> None:
    def throw(world: World) -> list[float]:
        return [rng.random() for rng in (world.network, world.traffic, world.faults)]

    assert throw(World(7)) == throw(World(7))
    assert len(set(throw(World(7)) + throw(World(8)))) == 6


def test_a_throw_of_one_die_does_not_change_another() -> None:
    quiet, busy = World(7), World(7)
    for _ in range(100):
        busy.network.random()
    assert quiet.traffic.random() == busy.traffic.random()
