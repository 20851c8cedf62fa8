"""Nodes that vanish at once turn the metadata of the rest read-only, so that no two parts diverge."""

from __future__ import annotations

import pytest

from lockstep.metadata.groups.membership import ServiceWish, SetService
from lockstep.recovery.plan import Wish
from lockstep.values.errors import Rejected
from lockstep.values.ids import NodeId
from tests.node.support import Outcome, Town, keyspace
from tests.node.test_recovery import cluster_ids, migrate

ON, OFF = "[metadata]\nvanish_percent=50\n", ""


def town_of(founders: int, lines: str = ON) -> Town:
    town = Town(1, founders=founders)
    town.extra_lines = {f"n{number}": lines for number in range(1, founders + 1)}
    town.found()
    town.wait(2)
    return town


def missing(town: Town, number: int) -> tuple[int, ...]:
    return town.node(number).membership.validator.missing


def held(town: Town, number: int) -> set[str]:
    return {one.code for one in town.node(number).context.conditions.current()}


def change(town: Town, number: int, name: str) -> Outcome:
    return town.finish(town.submit(number, keyspace(name)))


def test_a_sudden_drop_is_refused_shown_and_over_when_all_are_back() -> None:
    with town_of(7, "[metadata]\nvanish_percent=25\n") as town:
        assert change(town, town.leader(), "before").error is None
        others = [n for n in (4, 5, 6, 7) if n not in town.newest.voters]
        for number in others:
            town.process(number).crash("power")
        town.until(lambda: missing(town, town.leader()) == tuple(others))
        epoch = town.newest.epoch
        refused = change(town, town.leader(), "meanwhile")
        assert isinstance(refused.error, Rejected) and "is read-only" in refused.error.message
        assert "METADATA_READ_ONLY" in held(town, town.leader())
        town.wait(60)
        assert town.newest.epoch == epoch, "nothing at all came into the log"
        town.start(*others[:-1])
        town.until(lambda: missing(town, town.leader()) == (others[-1],))
        assert isinstance(change(town, town.leader(), "meanwhile").error, Rejected)
        town.start(others[-1])
        town.until(lambda: not missing(town, town.leader()))
        assert change(town, town.leader(), "after").error is None
        assert "METADATA_READ_ONLY" not in held(town, town.leader())


def test_it_outlasts_a_restart_and_an_operator_may_accept_the_loss() -> None:
    with town_of(5) as town:
        town.process(4).crash("power")
        town.process(5).crash("power")
        town.process(3).crash("power")
        town.until(lambda: all(missing(town, n) == (3, 4, 5) for n in (1, 2)))
        leader = town.leader()
        town.process(leader).crash("power")
        town.start(leader)
        town.until(lambda: town.ready(1, 2) and any(town.node(n).log.is_leader for n in (1, 2)))
        town.until(lambda: missing(town, 1) == missing(town, 2) == (3, 4, 5))
        assert isinstance(change(town, town.leader(), "meanwhile").error, Rejected)
        thaw = town.finish(town.submit(town.leader(), SetService(ServiceWish.THAW)))
        assert thaw.error is None
        town.until(lambda: not missing(town, 1) and not missing(town, 2))
        assert change(town, town.leader(), "after").error is None
        town.wait(20)
        assert not missing(town, town.leader())


def segmented(lines: str) -> Town:
    """Three nodes, each alone; both groups are on node 1."""
    town = town_of(3, lines)
    assert town.finish(town.submit(town.leader(), SetService(ServiceWish.SIZE, size=1))).error is None
    town.until(lambda: town.voters_settled and town.management_settled, 120.0)
    assert tuple(town.newest.voters) == (1,)
    town.wait(2)
    for one in (1, 2, 3):
        for other in (1, 2, 3):
            if one != other:
                town.world.network.block(f"127.0.0.{one}", f"127.0.0.{other}")
    town.wait(15)
    return town


def repaired(town: Town) -> None:
    """Node 2 goes on alone; then 1 and 3 see each other again, and start anew."""

    async def repair(_node: object) -> object:
        desk = town.node(2).membership.recovery
        return await desk.reset(await desk.plan(Wish((NodeId(2),), 1)))

    assert town.finish(town.begin(2, repair)).error is None
    town.until(lambda: town.ready(2) and town.node(2).log.is_leader)
    town.world.monitors.remove(town.log)  # Two incarnations have two histories from here on.
    town.world.network.heal()
    for number in (1, 3):
        town.process(number).crash("kill")
        town.start(number)
    town.until(lambda: town.ready(1, 3) and town.node(1).log.is_leader)
    town.wait(10)


def test_2_without_it_the_rest_goes_on_and_diverges() -> None:
    with segmented(OFF) as town:
        repaired(town)
        assert change(town, 1, "elsewhere").error is None
        town.wait(3)
        said = migrate(town, 1, 2).value[0]
        assert [one.node for one in said if one.diverged_at] == [1, 3]
        assert len(cluster_ids(town, (1, 2, 3))) == 2


def test_2_with_it_the_rest_stays_a_part_of_the_history_and_comes_back() -> None:
    with segmented(ON) as town:
        assert missing(town, 1) == (2, 3)
        assert isinstance(change(town, 1, "alone").error, Rejected)
        repaired(town)
        assert missing(town, 1) == (2,), "node 3 is back, and node 2 goes on elsewhere"
        assert isinstance(change(town, 1, "elsewhere").error, Rejected)
        said = migrate(town, 1, 2).value[0]
        assert [one.refused for one in said] == ["", ""]
        town.until(lambda: town.ready(1, 2, 3) and len(cluster_ids(town, (1, 2, 3))) == 1)
        town.until(lambda: not any(missing(town, n) for n in (1, 2, 3)))
        assert change(town, 2, "after").error is None, (
            "what is counted on are the nodes of the repaired cluster"
        )


@pytest.mark.parametrize("number", [1, 2])
def test_a_repaired_cluster_counts_on_its_own_nodes(number: int) -> None:
    with segmented(ON) as town:
        assert missing(town, 2) == (1, 3)
        repaired(town)
        assert missing(town, 2) == (), "those that took no part are none of its nodes until they come"
        assert change(town, 2, f"own{number}").error is None
