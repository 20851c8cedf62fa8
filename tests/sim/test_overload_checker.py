"""The checkers of overload refuse each promise that is broken, and simulated work takes the time it is to."""

from __future__ import annotations

import asyncio

import pytest

from lockstep.runtime.ports import Runtime
from lockstep.sim.checkers.overload import (
    GOODPUT_MIN,
    LATE_MS_MAX,
    NORMAL_MS,
    SERVED_LATE_MS_MAX,
    Deadlines,
    Given,
    Probe,
    Sent,
    check_goodput,
    check_marks,
    check_recovered,
)
from lockstep.sim.checkers.violation import Violation
from lockstep.sim.faults.kinds import SLOW_SYNCS_S
from lockstep.sim.load.history import Outcome
from lockstep.sim.load.overload_workload import AFTER_S, GOODPUT_S
from lockstep.sim.runtime.loop import SimLoop
from lockstep.sim.runtime.world import World, WorldSettings

MS = 1_000_000


def writes(**outcomes: Outcome) -> dict[bytes, Sent]:
    return {
        name.encode(): Sent(mark=name.encode(), client="c", outcome=outcome)
        for name, outcome in outcomes.items()
    }


def test_marks_of_what_succeeded_may_have_or_failed_otherwise_are_sound() -> None:
    made = writes(a=Outcome.OK, b=Outcome.UNKNOWN, c=Outcome.FAILED, d=Outcome.OPEN)
    assert check_marks(made, [b"a", b"b"], [b"a", b"d"]) == 3
    refused = {**made, b"e": Sent(mark=b"e", client="c", outcome=Outcome.FAILED, refused=True)}
    assert check_marks(refused, [b"a"], [b"a"]) == 1


@pytest.mark.parametrize(
    ("seen", "last", "said"),
    [
        ([b"e"], [b"a"], "LOAD-1: b'e' of c was refused"),
        ([], [b"a", b"e"], "LOAD-1: b'e' of c was refused"),
        ([b"z"], [b"a"], "REP-1: b'z' was read, which was never written"),
        ([b"a"], [], "REP-1: b'a' of c was acknowledged and is gone"),
    ],
)
def test_marks_that_must_not_be_there_or_must_are_found(
    seen: list[bytes], last: list[bytes], said: str
) -> None:
    made = writes(a=Outcome.OK)
    made[b"e"] = Sent(mark=b"e", client="c", outcome=Outcome.FAILED, refused=True)
    with pytest.raises(Violation, match=said):
        check_marks(made, seen, last)


def test_a_success_may_be_late_by_a_bound_and_by_how_long_its_node_was_stopped_or_late() -> None:
    deadlines, given = Deadlines(), Given(0, 1000 * MS, 50 * MS)
    for late_ms, stood_ms, loop_ms in ((1000, 50, 0), (1200, 250, 0), (1240, 50, 120)):
        at_ms = late_ms + LATE_MS_MAX
        deadlines.succeeded("w", given, at_ms * MS, stood_ms * MS, loop_ms * MS)
        assert deadlines.latest_ns == LATE_MS_MAX * MS
        with pytest.raises(Violation, match=f"LOAD-2: w succeeded {LATE_MS_MAX + 1} ms after"):
            Deadlines().succeeded("w", given, (at_ms + 1) * MS, stood_ms * MS, loop_ms * MS)


def test_a_replica_takes_nothing_that_nobody_waits_for_beyond_what_it_cannot_know() -> None:
    deadlines, within_ms = Deadlines(), 1000 + 5 + SERVED_LATE_MS_MAX
    deadlines.begun(b"fast", Given(0, 1000 * MS, 0))
    deadlines.begun(b"late", Given(0, 1000 * MS, 0))
    deadlines.begun(b"late", Given(9000 * MS, 9999 * MS, 0))  # A second attempt has the same deadline.
    deadlines.served("n", b"unknown", 1, 99_000 * MS)
    deadlines.served("n", b"late", 2, 99_000 * MS)  # It cannot know how long its first message took.
    deadlines.served("n", b"fast", 1, 5 * MS)
    deadlines.served("n", b"late", 1, within_ms * MS)
    with pytest.raises(Violation, match="LOAD-3: n worked on b'late'"):
        deadlines.served("n", b"late", 1, (within_ms + 1) * MS)


@pytest.mark.parametrize(
    ("probe", "sound"),
    [
        (Probe("n1", NORMAL_MS), True),
        (Probe("n1", NORMAL_MS + 1), False),
        (Probe("n1", 5, "0x1001: overloaded"), False),
    ],
)
def test_after_the_load_each_node_answers_in_time(probe: Probe, sound: bool) -> None:
    probes = [Probe("n2", 5), probe]
    if sound:
        assert check_recovered(probes) == 2
    else:
        with pytest.raises(Violation, match="LOAD-5: 2 s after the load n1"):
            check_recovered(probes)


def test_too_little_that_succeeds_is_found() -> None:
    check_goodput(int(100 * GOODPUT_MIN), 100)
    with pytest.raises(Violation, match="LOAD-4"):
        check_goodput(int(100 * GOODPUT_MIN) - 1, 100)


def test_what_a_callback_works_on_makes_all_behind_it_late() -> None:
    """Its own clock shows it, as it does on a machine that is too slow."""
    found: list[tuple[str, float]] = []

    async def main(runtime: Runtime) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimLoop)
        began_s = runtime.clock.monotonic_s()

        def note(what: str, cost_us: int = 0) -> None:
            found.append((what, round(runtime.clock.monotonic_s() - began_s, 6)))
            loop.work(cost_us)

        loop.call_later(0.010, note, "timer")
        loop.call_soon(note, "first", 7000)
        loop.call_soon(note, "second", 5000)
        loop.call_soon(note, "third")
        await asyncio.sleep(0.05)

    with World(1, WorldSettings(shuffle=0.0, timer_jitter_us=0)) as world:
        world.call(main)
    assert found == [("first", 0.0), ("second", 0.007), ("third", 0.012), ("timer", 0.012)]


def test_what_is_looked_at_for_goodput_begins_after_the_slowest_sync_that_had_begun() -> None:
    assert max(SLOW_SYNCS_S) < AFTER_S - GOODPUT_S
