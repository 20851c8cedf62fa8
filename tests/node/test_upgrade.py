"""From the ring to a log: five simulated nodes, of which some die at each thing that is made durable, silent
ones, two that begin at once, and what nodes give up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from lockstep.metadata.features import IncludeNodes
from lockstep.metadata.groups.management import Host
from lockstep.metadata.groups.ringed import RINGED, UpgradeState
from lockstep.metadata.groups.upgrade_entries import IGNORED
from lockstep.node.membership.voters import designated
from lockstep.node.node import Node
from lockstep.node.ring.carrying import ring_of
from lockstep.recovery.plan import Wish
from lockstep.sim.runtime.probes import CrashRule
from lockstep.topology.force_remove import ForceRemove
from lockstep.values.errors import LockstepError, PreconditionError, Rejected
from lockstep.values.ids import NodeId
from tests.node.support import Outcome, Town, keyspace

ALL = (1, 2, 3, 4, 5)
#: What is made durable on the way, at the node that drives it and at the others.
PLACES = (
    "upgrade.decided",
    "upgrade.flushed",
    "recovery.managed",
    "recovery.grouped",
    "upgrade.grouped",
    "upgrade.begun",
)


class RingTown(Town):
    def __init__(self, seed: int = 1, founders: int = 5, mode: str = "quorum") -> None:
        super().__init__(seed, founders)
        quoted = ", ".join(f'"{founder}"' for founder in self.founders)
        for number in range(1, founders + 1):
            lines = f'founders=[{quoted}]\nmembership="ring"\nring_mode="{mode}"'
            self.cluster_lines[f"n{number}"] = lines

    def found(self) -> None:
        numbers = range(1, len(self.founders) + 1)
        self.start(*numbers)
        self.until(lambda: self.ready(*numbers))
        self.agreed(*numbers)
        self.wait(2)

    def upgrade(self, number: int, *ignored: int) -> Outcome:
        def work(node: Node) -> Any:
            return node.membership.upgrade.begin(tuple(map(NodeId, ignored)), f"asked at {number}")

        return self.begin(number, work)

    def states(self, *numbers: int) -> set[str]:
        return {self.node(number).log.cluster.upgrade_state for number in numbers}

    def built(self, *numbers: int) -> Callable[[], bool]:
        def all_built() -> bool:
            return (
                self.ready(*numbers)
                and self.states(*numbers) == {UpgradeState.DONE}
                and self.voters_settled
                and self.management_settled
            )

        return all_built

    def changes(self, number: int, name: str) -> None:
        done = self.finish(self.submit(number, keyspace(name)))
        assert done.error is None, done.error


def test_a_ring_gets_a_log_that_takes_changes_and_newcomers() -> None:
    with RingTown() as town:
        town.found()
        town.changes(3, "before")
        assert town.states(*ALL) == {UpgradeState.NOT_UPGRADED}
        begun = town.finish(town.upgrade(4))
        assert begun.error is None
        town.until(town.built(*ALL))
        assert town.newest.parts[RINGED].built_epoch and len(town.newest.voters) == 3
        assert len(town.newest.generations) == 2 and town.newest.generations[-1].is_published
        # Asked for again it is done.
        assert town.finish(town.upgrade(2)).value == UpgradeState.DONE
        town.changes(5, "after")
        town.cluster_lines["n6"] = f'seeds=["{town.founders[0]}"]'
        town.start(6)
        town.until(lambda: town.ready(6))
        # All of it is there after a start.
        for number in ALL:
            town.process(number).crash("power")
        town.start(*ALL)
        town.until(town.built(*ALL))
        town.changes(1, "last")
        town.agreed(*ALL, 6)


def test_scenario_27_of_two_that_begin_at_once_one_wins_and_both_are_told_that_it_runs() -> None:
    with RingTown() as town:
        town.found()
        both = [town.upgrade(2), town.upgrade(5)]
        for one in both:
            assert town.finish(one).error is None
        town.until(town.built(*ALL))
        entries = town.node(1).log.state.entries
        assert [entry.kind for entry in entries].count(62) == [entry.kind for entry in entries].count(63) == 1


def test_a_dead_node_is_ignored_by_name_and_shut_out_when_it_comes_back() -> None:
    with RingTown() as town:
        town.found()
        town.process(3).crash("kill")
        town.wait(15)
        held = town.finish(town.upgrade(2))
        assert held.error is None
        # Nobody ignored it: it is waited for, and then all give up.
        town.until(lambda: town.states(1, 2, 4, 5) == {UpgradeState.NOT_UPGRADED}, 60)
        assert "node 3" in town.newest.parts[RINGED].gave_up
        town.changes(1, "between")
        assert town.finish(town.upgrade(2, 3)).error is None
        town.until(town.built(1, 2, 4, 5))
        exclusion = town.newest.excluded_by_node[NodeId(3)]
        assert exclusion.reason == IGNORED and 3 not in town.newest.voters
        town.changes(4, "after")
        town.start(3)
        town.until(lambda: "n3" in town.nodes and town.node(3).log.cluster.epoch == town.newest.epoch)
        assert town.states(3) == {UpgradeState.DONE} and town.node(3).log.driver is None
        town.wait(3)
        assert not town.ready(3), "it serves nobody"
        include = IncludeNodes((NodeId(3),), (town.node(3).log.state.epoch,))
        assert town.finish(town.submit(1, include)).error is None
        town.until(lambda: town.ready(3))


def test_while_it_runs_nothing_else_changes_and_it_can_be_given_up_at_any_node() -> None:
    with RingTown() as town:
        town.found()
        town.process(4).crash("kill")
        assert town.finish(town.upgrade(1)).error is None
        refused = town.finish(town.submit(2, keyspace("held")))
        assert isinstance(refused.error, Rejected) and "on its way to a log" in refused.error.message
        told = town.finish(town.begin(5, lambda node: node.membership.upgrade.abort("me")))
        assert "me gave it up" in str(told.value)
        town.start(4)
        town.until(lambda: town.ready(*ALL) and town.states(*ALL) == {UpgradeState.NOT_UPGRADED})
        town.changes(4, "free")
        none = town.finish(town.begin(5, lambda node: node.membership.upgrade.abort("me")))
        assert isinstance(none.error, PreconditionError)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("role", ["driver", "other"])
def test_whoever_dies_at_what_is_made_durable_a_log_is_built_once(place: str, role: str) -> None:
    with RingTown(seed=PLACES.index(place) + 1) as town:
        town.found()
        driver = designated(town.newest, 1, lambda _node: True)
        struck = int(driver) if role == "driver" else 2
        died: list[str] = []
        town.world.probes.add(
            CrashRule(
                label=place,
                process=f"n{struck}",
                kind="power",
                hit=1,
                restart_after_s=3.0,
                on_fired=died.append,
            )
        )
        town.finish(town.upgrade(5))
        town.until(town.built(*(one for one in ALL if one != struck)), 90)
        if not town.process(struck).alive:
            town.start(struck)
        town.until(town.built(*ALL), 90)
        assert died or role == "other"
        kinds = [entry.kind for entry in town.node(1).log.state.entries]
        assert kinds.count(63) == 1, "one entry builds the log"
        town.changes(4, "after")


def test_where_all_must_accept_nobody_is_ignored_and_the_living_get_a_log() -> None:
    with RingTown(founders=3, mode="unanimous") as town:
        town.found()
        refused = town.finish(town.upgrade(1, 3))
        assert isinstance(refused.error, LockstepError) and "none can be ignored" in refused.error.message
        assert town.finish(town.upgrade(1)).error is None
        town.until(town.built(1, 2, 3))
        town.changes(2, "after")


def test_the_circle_from_a_lost_log_over_the_ring_to_another_log() -> None:
    """The log's majority dies, what is left goes on on the ring, removes the dead there, and gets a log."""
    with Town(1, founders=5) as town:
        town.found()
        voters, left = tuple(map(int, town.newest.voters)), [4, 5]
        assert voters == (1, 2, 3)
        town.finish(town.submit(town.leader(), keyspace("before", 1)))
        town.agreed(*ALL)
        former = town.newest.identity.cluster_id
        for number in voters:
            town.process(number).crash("power")
            del town.nodes[f"n{number}"]
        town.wait(5)

        async def conduct(node: Node) -> Any:
            desk = node.membership.recovery
            return await desk.reset(await desk.plan(Wish(to_ring=True)))

        told = town.finish(town.begin(4, conduct))
        assert told.error is None and told.value.plan.ring_mode == "quorum"
        town.until(lambda: town.ready(*left) and all(town.node(n).log.cluster.is_on_ring for n in left))
        assert ring_of(town.newest).voters == ("4", "5") and town.newest.identity.lineage[0] == former
        # On the ring what needs no log goes on, and the dead are removed.
        assert town.finish(town.submit(5, keyspace("between", 1))).error is None
        for dead in voters:
            assert town.finish(town.submit(4, ForceRemove(NodeId(dead), "gone"))).error is None
        # All of it is kept over a start of everybody.
        for number in left:
            town.process(number).crash("power")
        town.start(*left)
        town.until(lambda: town.ready(*left))
        begun = town.begin(5, lambda node: node.membership.upgrade.begin((), "an operator"))
        assert town.finish(begun).error is None
        town.until(
            lambda: (
                all(town.node(n).log.cluster.upgrade_state is UpgradeState.DONE for n in left)
                and town.voters_settled
                and town.management_settled
            )
        )
        assert town.finish(town.submit(4, keyspace("after", 1))).error is None
        # A node of the lost log is of another cluster id, and stays what it is.
        town.start(1)
        town.wait(10)
        assert town.node(1).log.cluster.identity.cluster_id == former
        terms = [entry.term for entry in town.node(4).log.state.entries]
        assert terms == sorted(terms), "terms never go back, over the ring and to another log"


def test_a_newcomer_that_asked_nobody_on_the_ring_is_let_in_by_the_group_of_the_log() -> None:
    """It saw that members of a ring let nobody in, and its entry comes when there is a log."""
    with RingTown() as town:
        town.found()
        built: list[bool] = []

        def prepare(_name: str, node: Node) -> None:
            admit = node.membership.management.admit

            async def late(host: Host) -> None:
                await admit(host)
                while not built:  # noqa: ASYNC110
                    await asyncio.sleep(0.1)

            node.membership.management.admit = late  # type: ignore[method-assign]

        town.prepare = prepare
        town.cluster_lines["n6"] = f'seeds=["{town.founders[0]}"]'
        town.start(6)
        town.until(lambda: town.nodes.get("n6") is not None and town.node(6).log.state.epoch > 0)
        town.wait(1)
        assert town.finish(town.upgrade(1)).error is None
        town.until(town.built(*ALL))
        assert len(town.newest.directory.nodes) == 5
        built.append(True)
        town.until(lambda: town.ready(6))
        assert any("got a log meanwhile" in str(said) for said in town.logged("join.waits", "n6"))
        host_id = town.node(6).context.host_id()
        groups = [town.node(number).membership.management.group for number in ALL]
        members = [group for group in groups if group is not None]
        town.until(lambda: bool(members) and all(host_id in one.state.by_host_id for one in members))
