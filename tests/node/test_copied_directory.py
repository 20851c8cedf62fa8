"""One data directory, copied, under two processes: one of them is the node, and the other learns that."""

from __future__ import annotations

import pytest

from lockstep.metadata.directory import NodeState
from lockstep.sim.runtime.probes import DelayRule
from lockstep.values.errors import LockstepError, PreconditionError
from lockstep.values.ids import NodeId
from tests.node.support import Town, keyspace


def copied(town: Town, number: int, to: int) -> None:
    """Process `to` has what the disk of process `number` holds now, and knows where the cluster is."""
    town.process(to).swap_disk(town.process(number).disk.clone(f"n{to}"))
    town.cluster_lines[f"n{to}"] = 'seeds=["127.0.0.1", "127.0.0.2", "127.0.0.3"]\n'


def ended(town: Town, number: int) -> LockstepError:
    town.until(lambda: f"n{number}" in town.ended, limit_s=30)
    return town.ended[f"n{number}"]


@pytest.mark.parametrize("number", [1, 2])
def test_a_copy_of_a_live_nodes_directory_does_not_start(number: int) -> None:
    with Town() as town:
        town.found()
        before = town.newest
        copied(town, number, 12)
        town.start(12)
        refused = ended(town, 12)
        assert isinstance(refused, PreconditionError) and refused.exit_code == 3
        assert f"node {number} runs at 127.0.0.{number}" in refused.message and "copy" in refused.hint
        town.wait(3.0)
        assert town.ready(1, 2, 3) and town.newest.directory == before.directory
        assert town.finish(town.submit(3, keyspace("k"))).error is None


def test_a_copy_that_cannot_ask_the_live_node_is_heard_by_nobody() -> None:
    with Town() as town:
        town.found()
        before = town.newest
        copied(town, 2, 12)
        town.world.network.block("127.0.0.12", "127.0.0.2")
        town.start(12)
        town.wait(8.0)
        assert not town.ready(12) and town.ready(1, 2, 3)
        assert town.newest.directory == before.directory
        assert any("127.0.0.2" in said["reason"] for said in town.logged("internode.refused", "n1"))


def test_a_paused_node_whose_copy_took_its_place_is_heard_no_more_and_ends_once_it_learns_of_it() -> None:
    with Town() as town:
        town.found()
        copied(town, 2, 12)
        town.process(2).pause()
        town.wait(8.0)
        town.start(12)
        town.until(lambda: town.ready(12))
        held = town.node(2).log.state.epoch
        town.process(2).resume()
        town.wait(5.0)
        assert town.ready(1, 3, 12) and town.node(2).log.state.epoch == held
        assert town.finish(town.submit(3, keyspace("k"))).error is None
        town.process(12).crash()
        gone = ended(town, 2)
        assert isinstance(gone, PreconditionError) and "127.0.0.12" in gone.message


def test_a_copy_of_a_joining_nodes_directory_does_not_join_in_its_place() -> None:
    with Town() as town:
        town.found()
        town.start(4)
        town.until(lambda: 4 in town.newest.directory.by_id)
        town.world.probes.add(DelayRule(label="work.done", process="n4", low_s=4.0, high_s=4.0))
        town.wait(0.05)
        copied(town, 4, 14)
        town.start(14)
        assert "data directory" in f"{ended(town, 14)} {ended(town, 14).hint}"
        town.until(lambda: town.ready(4))
        node = town.newest.directory.by_id[NodeId(4)]
        assert (node.address, node.state) == ("127.0.0.4", NodeState.NORMAL)


def test_a_node_that_lost_power_and_comes_back_elsewhere_at_once_is_heard_when_its_old_self_is_silent() -> (
    None
):
    with Town() as town:
        town.found()
        disk = town.process(2).disk
        town.process(2).crash("power")
        town.process(12).swap_disk(disk)
        town.cluster_lines["n12"] = 'seeds=["127.0.0.1", "127.0.0.3"]\n'
        town.start(12)
        town.until(lambda: town.ready(12), limit_s=15)
        assert town.newest.directory.by_id[NodeId(2)].address == "127.0.0.12"
        assert town.finish(town.submit(12, keyspace("k"))).error is None
