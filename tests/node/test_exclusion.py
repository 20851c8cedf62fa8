"""An excluded node and the others say nothing to each other but what lets it catch up."""

from __future__ import annotations

import pytest

from lockstep.internode import verbs
from lockstep.metadata.features import ExcludeNodes, IncludeNodes
from lockstep.node.log.messages import AskMembers, EpochQuery, FetchLog, HashAt
from lockstep.node.node import Node
from lockstep.topology.joining import AskJoin
from lockstep.values.errors import LockstepError, NodeExcluded
from lockstep.values.ids import NodeId
from tests.node.support import Outcome, Town, keyspace

ALLOWED = {
    verbs.EPOCH_QUERY: EpochQuery(1),
    verbs.MEMBERS: AskMembers(1),
    verbs.FETCH_LOG: FetchLog(1),
    verbs.HASH_AT: HashAt(1),
}


def asked(town: Town, asker: int, answerer: int, verb: int, message: object) -> Outcome:
    async def send(node: Node) -> object:
        return await node.context.internode.request((f"127.0.0.{answerer}", 7000), verb, message, 1000)

    return town.finish(town.begin(asker, send))


@pytest.mark.parametrize(("asker", "answerer"), [(4, 2), (2, 4)])
def test_only_what_it_lacks_passes_between_an_excluded_node_and_the_others(asker: int, answerer: int) -> None:
    with Town() as town:
        town.found()
        town.start(4)
        town.until(lambda: town.ready(4))
        assert town.finish(town.submit(1, ExcludeNodes((NodeId(4),), "suspect"))).error is None
        town.agreed(1, 2, 3, 4)
        services = town.node(asker).context.internode._services
        for verb in [verb for verb in services if verb not in verbs.CATCH_UP]:
            error = asked(town, asker, answerer, verb, None).error
            assert isinstance(error, NodeExcluded), verbs.NAMES[verb]
        for verb, message in ALLOWED.items():
            assert asked(town, asker, answerer, verb, message).error is None, verbs.NAMES[verb]
        # Between the others everything passes.
        assert asked(town, 1, 2, verbs.JOIN_ASK, AskJoin("lockstep")).error is None


def test_what_an_excluded_node_may_say_is_exactly_what_catching_up_takes() -> None:
    assert {verbs.NAMES[verb] for verb in verbs.CATCH_UP} == {
        "fetch-log", "fetch-snapshot", "announce", "epoch-query", "hash-at", "members", "ping",
        # An excluded member of a ring without a log has a voice there all the same.
        "ring-mail",
    }  # fmt: skip


def test_an_excluded_node_catches_up_with_what_happened_and_changes_nothing_meanwhile() -> None:
    with Town() as town:
        town.found()
        town.start(4)
        town.until(lambda: town.ready(4))
        assert town.finish(town.submit(1, ExcludeNodes((NodeId(4),), "suspect"))).error is None
        town.process(4).crash()
        assert town.finish(town.submit(1, keyspace("k"))).error is None
        town.start(4)
        town.until(lambda: town.ready(4))
        town.agreed(1, 2, 3, 4)
        refused = town.finish(town.submit(4, keyspace("mine"))).error
        assert isinstance(refused, LockstepError) and "excluded" in refused.message
        assert refused.outcome_known, "nothing was done"
        assert not town.node(1).membership.liveness.alive(4) and town.node(4).membership.liveness.alive(4)
        reached = (town.node(4).log.state.epoch,)
        assert town.finish(town.submit(1, IncludeNodes((NodeId(4),), reached))).error is None
        town.agreed(1, 2, 3, 4)
        assert town.finish(town.submit(4, keyspace("mine"))).error is None


def test_a_replacement_at_the_address_of_an_excluded_node_is_not_shut_out_with_it() -> None:
    with Town() as town:
        town.found()
        town.start(4)
        town.until(lambda: town.ready(4))
        town.process(4).crash()
        assert town.finish(town.submit(1, ExcludeNodes((NodeId(4),), "dead"))).error is None
        town.wait(6.0)
        town.world.process("n5", "127.0.0.4")
        town.cluster_lines["n5"] = 'seeds=["127.0.0.1", "127.0.0.2"]\nreplaces=4'
        town.start(5)
        town.until(lambda: town.ready(5))
        assert not town.newest.excluded
