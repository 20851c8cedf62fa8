"""Gossip between real nodes: everybody learns, few messages do it, and who does not serve is asked last."""

from __future__ import annotations

import pytest

from lockstep.gossip.soft_state import Known
from lockstep.metadata.requests import REQUESTS, Request, Requests
from lockstep.server.admin.requests import Requests as Desk
from lockstep.topology.kinds.remove import Remove
from lockstep.topology.requests import CancelRequest
from lockstep.topology.transformations import PrepareOperation
from lockstep.values.errors import Rejected
from lockstep.values.ids import NodeId
from lockstep.values.limits import GOSSIP_PARTNERS_MAX
from tests.node.support import Town, decommission, keyspace


def known(town: Town, holder: int, node: int) -> Known:
    found = town.node(holder).membership.gossip.known(node)
    assert found is not None
    return found


def test_every_node_learns_what_every_other_says_of_itself() -> None:
    with Town() as town:
        town.found()
        town.start(4)
        town.until(lambda: town.ready(4))
        town.wait(5)
        for holder in (1, 2, 3, 4):
            for node in (1, 2, 3, 4):
                told = known(town, holder, node).state
                assert told.ready and told.load_bytes >= 0 and told.streams == 0
                assert told.epoch == town.newest.epoch
                assert told.schema_version == town.newest.schema.digest[:16]
        assert all(
            town.node(holder).membership.liveness.opinions.prefers(node)
            for holder in (1, 4)
            for node in (1, 2, 3, 4)
        )


def test_a_restart_shows_as_a_new_generation_everywhere() -> None:
    with Town() as town:
        town.found()
        town.wait(3)
        before = known(town, 1, 3)
        town.process(3).crash()
        town.wait(1)
        town.start(3)
        town.until(lambda: town.ready(3))
        town.wait(4)
        for holder in (1, 2):
            after = known(town, holder, 3)
            assert after.version.generation > before.version.generation
            assert after.state.started_us > before.state.started_us


def test_a_node_that_does_not_serve_is_alive_and_asked_last() -> None:
    with Town() as town:
        town.found()
        town.wait(3)
        town.node(2).ready = False
        town.until(lambda: not town.node(1).membership.liveness.opinions.prefers(2), limit_s=6)
        assert town.node(1).membership.liveness.alive(2) and town.node(
            2
        ).membership.liveness.opinions.prefers(2)
        town.node(2).ready = True
        town.until(lambda: town.node(1).membership.liveness.opinions.prefers(2), limit_s=6)


def test_a_silent_node_is_slow_first_and_then_suspected() -> None:
    with Town() as town:
        town.found()
        town.wait(10)
        town.process(3).crash()
        liveness = town.node(1).membership.liveness
        town.until(lambda: not liveness.opinions.prefers(3), limit_s=4)
        assert liveness.alive(3)
        town.until(lambda: not liveness.alive(3), limit_s=4)
        assert liveness.opinions.phi(3) > 7.5 and (liveness.silent_s(3) or 0) > 1


@pytest.mark.parametrize("count", [3, 8])
def test_a_node_sends_few_messages_however_many_there_are(count: int) -> None:
    with Town(founders=count) as town:
        town.found()
        before = {number: town.node(number).membership.gossip.sent for number in range(1, count + 1)}
        town.wait(10)
        for number, sent in before.items():
            gossip = town.node(number).membership.gossip
            # In each second: its own syns and what they lead to, and the acks for as many of others.
            assert 0 < gossip.sent - sent <= 11 * 3 * GOSSIP_PARTNERS_MAX


def test_asking_tells_a_live_node_from_a_dead_one_whatever_was_heard() -> None:
    with Town() as town:
        town.found()
        asked = town.finish(town.begin(1, lambda node: node.membership.liveness.answers(3)))
        assert asked.value is True
        town.process(3).crash()
        assert town.node(1).membership.liveness.alive(3), "it is not suspected yet"
        asked = town.finish(town.begin(1, lambda node: node.membership.liveness.answers(3)))
        assert asked.value is False and asked.done_s - asked.begun_s < 1.5


def test_a_node_that_left_is_forgotten_and_told_of_no_more() -> None:
    with Town() as town:
        town.found()
        town.start(4)
        town.until(lambda: town.ready(4))
        town.until(lambda: 4 not in town.newest.service.members)
        assert town.finish(town.submit(1, decommission(4))).error is None
        town.until(lambda: "n4" in town.ended, limit_s=60)
        town.agreed(1, 2, 3)
        told: list[int] = []
        for number in (1, 2, 3):
            town.node(number).membership.liveness.listen(lambda node, _alive: told.append(int(node)))
        town.wait(5.0)
        for number in (1, 2, 3):
            liveness = town.node(number).membership.liveness
            assert liveness.silent_s(4) is None and not liveness.alive(4)
            assert town.node(number).membership.gossip.known(4) is None
        assert told == []


def test_a_node_that_others_hear_is_not_dead_for_one_that_is_cut_off_from_it() -> None:
    with Town() as town:
        town.found()
        town.start(4, 5)
        town.until(lambda: town.ready(4, 5), limit_s=120)
        town.world.network.block("127.0.0.1", "127.0.0.4")
        town.world.network.block("127.0.0.4", "127.0.0.1")
        town.until(lambda: not town.node(1).membership.liveness.alive(4))
        asked = town.finish(town.begin(1, lambda node: node.membership.liveness.answers(4)))
        assert asked.value is False
        asked = town.finish(town.begin(1, lambda node: node.membership.liveness.answers_somebody(4)))
        assert asked.value is True and asked.done_s - asked.begun_s < 3.5
        removal = {"kind": "remove", "node": 4}
        refused = town.finish(town.begin(1, lambda node: Desk(node.services).submit(removal)))
        assert isinstance(refused.error, Rejected) and "is alive" in refused.error.message
        town.process(4).crash()
        asked = town.finish(town.begin(1, lambda node: node.membership.liveness.answers_somebody(4)))
        assert asked.value is False


@pytest.mark.parametrize(
    ("asked_epoch", "presumed_dead", "crashed", "begins"),
    [
        (1, False, False, False),
        (1, True, False, True),
        (1, False, True, True),
        (0, False, False, True),
    ],
    ids=["it came back", "an operator insists", "it is dead", "it was asked for long ago"],
)
def test_a_removal_whose_node_came_back_is_taken_back_before_it_begins(
    asked_epoch: int, presumed_dead: bool, crashed: bool, begins: bool
) -> None:
    with Town() as town:
        town.found()
        town.wait(6)
        if crashed:
            town.process(3).crash()
            town.wait(6)
        request = Request(1, Remove(NodeId(3), presumed_dead=presumed_dead), requested_epoch=asked_epoch)
        cluster = town.newest.changed(REQUESTS.set(Requests((request,), (), 2)))
        wanted = PrepareOperation(Remove(NodeId(3), presumed_dead), request_id=1)
        found = town.node(1).work.topology._reconsidered(cluster, wanted)
        if begins:
            assert found == wanted
        else:
            assert found == CancelRequest(1, "node 3 came back: only a dead node is removed")


def test_a_removal_that_was_asked_for_just_now_begins() -> None:
    with Town() as town:
        town.found()
        assert town.finish(town.submit(1, keyspace("ks"))).error is None
        request = Request(1, Remove(NodeId(3)), requested_epoch=town.newest.epoch)
        cluster = town.newest.changed(REQUESTS.set(Requests((request,), (), 2)))
        wanted = PrepareOperation(Remove(NodeId(3)), request_id=1)
        assert town.node(1).work.topology._reconsidered(cluster, wanted) == wanted


@pytest.mark.parametrize("paused_s", [12.0, 30.0])
def test_a_node_that_was_paused_takes_nobody_for_dead_when_it_goes_on(paused_s: float) -> None:
    with Town() as town:
        town.found()
        town.start(4)
        town.until(lambda: town.ready(4))
        town.wait(3.0)
        told: list[tuple[int, bool]] = []
        town.node(1).membership.liveness.listen(lambda node, alive: told.append((int(node), alive)))
        town.process(1).pause_for(paused_s)
        town.wait(paused_s + 3.0)
        assert told == [] and all(town.node(1).membership.liveness.alive(node) for node in (2, 3, 4))
        town.process(4).crash()
        town.wait(3.0)
        assert told == [(4, False)], "a dead one is found out as ever"
