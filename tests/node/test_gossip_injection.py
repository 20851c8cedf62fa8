"""An operator puts a state into gossip in a node's place, on the ring without a log: all take it until the
node itself says otherwise.
"""

from __future__ import annotations

from typing import Any

import pytest

from lockstep.gossip.soft_state import SoftState, SoftStates, Version
from lockstep.node.node import Node
from lockstep.server.admin.gossip_injection import GossipInjections
from lockstep.values.errors import ConfigurationError, PreconditionError
from tests.node.support import Outcome, Town
from tests.node.test_upgrade import RingTown


def inject(town: Town, number: int, **body: Any) -> Outcome:
    def work(node: Node) -> Any:
        return GossipInjections(node.services).inject(body, "ann")

    return town.finish(town.begin(number, work))


def known(town: Town, number: int, of: int) -> SoftState:
    found = town.node(number).membership.gossip.known(of)
    assert found is not None
    return found.state


def test_a_dead_node_s_state_is_put_right_everywhere_and_is_in_the_audit() -> None:
    with RingTown(founders=4) as town:
        town.found()
        town.until(lambda: all(known(town, n, 4).ready for n in (1, 2, 3)))
        town.process(4).crash("power")
        town.wait(15)
        assert all(known(town, n, 4).ready for n in (1, 2, 3)), "its last word stands"
        shown = inject(town, 1, node=4, ready=False, epoch=7, dry_run=True).value
        assert (shown.before.ready, shown.after.ready, shown.after.epoch) == (True, False, 7)
        town.wait(5)
        assert known(town, 1, 4).ready and not town.node(1).membership.recovery.audit.records
        done = inject(town, 1, node=4, ready=False, epoch=7).value
        assert not done.dry_run and not done.alive and done.version == shown.version
        town.until(
            lambda: all(not known(town, n, 4).ready and known(town, n, 4).epoch == 7 for n in (1, 2, 3))
        )
        record = town.node(1).membership.recovery.audit.records[-1]
        assert (record.step, record.actor) == ("injected", "ann") and "node 4: ready=False" in record.text
        # Its own word counts again once it is back.
        town.start(4)
        town.until(lambda: town.ready(4))
        town.until(lambda: all(known(town, n, 4).ready and known(town, n, 4).epoch != 7 for n in (1, 2, 3)))


def test_a_node_that_lives_outranks_what_is_said_of_it() -> None:
    with RingTown(founders=3) as town:
        town.found()
        assert inject(town, 1, node=2, ready=False).value.alive
        town.until(lambda: not known(town, 3, 2).ready, 10)
        town.until(lambda: all(known(town, n, 2).ready for n in (1, 3)), 10)


@pytest.mark.parametrize(
    ("body", "kind", "text"),
    [
        ({"node": 1, "ready": False}, ConfigurationError, "is this node"),
        ({"node": 9, "ready": False}, ConfigurationError, "none of the others"),
        ({"node": 2, "release": "x" * 500}, ConfigurationError, "no node would take"),
        ({"node": 2, "tokens": 3}, ConfigurationError, "no node says"),
    ],
)
def test_what_is_refused(body: dict[str, Any], kind: type[Exception], text: str) -> None:
    with RingTown(founders=2) as town:
        town.found()
        refused = inject(town, 1, **body).error
        assert isinstance(refused, kind) and text in refused.message
        assert not town.node(1).membership.recovery.audit.records


def test_a_cluster_with_a_log_takes_none() -> None:
    with Town() as town:
        town.found()
        refused = inject(town, 1, node=2, ready=False).error
        assert isinstance(refused, PreconditionError) and "only on the ring" in refused.message


def test_the_version_is_newer_than_all_that_is_known_here() -> None:
    states = SoftStates(1, 1)
    states.keep((1, 2))
    assert states.put(2, SoftState(epoch=3), 1.0) == Version(1, 1)
    assert states.put(2, SoftState(epoch=4), 2.0) == Version(1, 2)
    other = SoftStates(3, 1)
    other.keep((1, 2, 3))
    other.told(states.answer(other.syn()).told, 1.0)
    found = other[2]
    assert found is not None and found.state.epoch == 4
