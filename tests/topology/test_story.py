"""Stories are told from the values before and after an entry, so they cannot leave one out."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.features import ExcludeNodes, IncludeNodes
from lockstep.metadata.groups.membership import AdvanceMembership, PrepareMembership
from lockstep.metadata.transformations import UpdateNode
from lockstep.topology import story
from lockstep.topology.kinds.bootstrap import Bootstrap
from lockstep.topology.kinds.decommission import Decommission
from lockstep.topology.kinds.move import Move
from lockstep.topology.kinds.rebuild import Rebuild
from lockstep.topology.requests import CancelRequest, EnqueueRequest
from lockstep.topology.transformations import AdvanceOperation, PrepareOperation, preparation
from lockstep.values.ids import NodeId
from lockstep.values.limits import REQUESTS_ENDED_KEPT_MAX
from tests.metadata.histories import History, SetKeyspaces, simple, started
from tests.topology.drills import register, replacing, run_out

Tell = Callable[[ClusterMetadata, ClusterMetadata], Iterator[str]]
FOUR = NodeId(4)


class Told(History):
    """A history that tells stories of itself, from its second entry on."""

    def __init__(self, base: History) -> None:
        self.__dict__.update(base.__dict__)
        self.first = len(base.values) - 1

    def does(self, body: object) -> None:
        self.submit(body)  # type: ignore[arg-type]

    def story(self, tell: Tell) -> list[str]:
        pairs = zip(self.values[self.first :], self.values[self.first + 1 :], strict=False)
        return [text for before, after in pairs for text in tell(before, after)]


def told() -> Told:
    return Told(started([(100,), (200,), (300,), (400,)], ("ks", simple(2))))


def run(history: Told, cancel_at: int | None = None) -> None:
    """A decommission of node 4, from the wish to the end."""
    history.does(EnqueueRequest(Decommission(FOUR), actor="ann"))
    (request,) = history.now.requests.queue
    history.does(preparation(request, request.id))
    for at in range(10):
        if not history.now.operations:
            return
        operation = history.now.operations[0]
        if at == cancel_at:
            history.does(CancelRequest(request.id, "changed my mind"))
        else:
            history.does(AdvanceOperation(operation.id, operation.stage))


def test_a_request_tells_who_asked_each_stage_and_the_outcome() -> None:
    history = told()
    run(history)
    request = history.now.requests.ended[-1]
    texts = history.story(lambda before, after: story.of_request(before, after, request.id))
    assert texts[0] == "is asked for by ann"
    assert texts[1] == "is next in the queue"
    assert texts[2].startswith(f"begins as operation {request.operation_id}, after 1 epoch in the queue")
    stages = [text.split()[1] for text in texts if text.startswith("enters")]
    assert stages == [
        "prepared", "write_both_read_old", "write_both_read_new", "left_token_ring", "cleanup",
    ]  # fmt: skip
    assert texts[-2:] == ["leaves cleanup and ends", "is done"]


def test_a_cancelled_one_says_why() -> None:
    history = told()
    run(history, cancel_at=1)
    request = history.now.requests.ended[-1]
    texts = history.story(lambda before, after: story.of_request(before, after, request.id))
    assert any("enters rollback_to_normal" in text and "changed my mind" in text for text in texts)
    assert texts[-1] == "is cancelled: changed my mind"
    node = history.story(lambda before, after: story.of_node(before, after, FOUR))
    assert "begins to leave the ring" in node and node[-2:] != ["has left the cluster"]


def test_a_request_that_waits_tells_for_what() -> None:
    history = told()
    history.does(EnqueueRequest(Decommission(FOUR)))
    history.does(preparation(history.now.requests.queue[0], history.now.requests.queue[0].id))
    history.does(EnqueueRequest(Move(NodeId(1), (350,))))
    waiting = history.now.requests.queue[0]
    texts = history.story(lambda before, after: story.of_request(before, after, waiting.id))
    assert "operation 1 (decommission of node 4)" in texts[1] and texts[1].startswith("waits: ")


def test_a_node_that_left_tells_its_whole_life() -> None:
    history = told()
    history.does(ExcludeNodes((FOUR,), "suspect"))
    texts = history.story(lambda before, after: story.of_node(before, after, FOUR))
    assert texts == ["is shut out: suspect"]
    history = told()
    run(history)
    texts = history.story(lambda before, after: story.of_node(before, after, FOUR))
    assert "begins to leave the ring" in texts and "has left the cluster" in texts
    assert any("is to give it 0 ranges and take" in text for text in texts)
    others = history.story(lambda before, after: story.of_node(before, after, NodeId(2)))
    assert all("begins to leave" not in text for text in others)


def test_a_token_tells_who_owned_it_through_which_entry() -> None:
    history = told()
    run(history)
    # Token 350 belongs to node 4 and the next one.
    texts = history.story(lambda before, after: story.of_token(before, after, "ks", 350))
    assert texts[0].startswith("read from nodes 4, 1, also written to node 2, by operation 1")
    assert texts[0].endswith("at write_both_read_old")
    assert any(text.startswith("read from nodes 1, 2, also written to node 4") for text in texts)
    assert texts[-1].startswith("owned by nodes 1, 2")
    assert history.story(lambda before, after: story.of_token(before, after, "other", 350)) == []


def test_an_epoch_tells_what_it_did_to_everything() -> None:
    history = told()
    run(history)
    before, after = history.values[history.first + 1 : history.first + 3]
    texts = list(story.of_epoch(before, after))
    assert any(text.startswith("node 4 begins to leave the ring") for text in texts)
    assert any(text.startswith("request 1 (decommission of node 4): begins as operation 1") for text in texts)


def of_node(history: Told, node: int) -> list[str]:
    return history.story(lambda before, after: story.of_node(before, after, NodeId(node)))


def test_a_founder_a_newcomer_and_a_replacement_tell_how_they_came() -> None:
    history = told()
    history.first = 0
    assert of_node(history, 1)[0] == (
        "is registered as node 1 at 10.0.0.1:7000 in dc1/r1, a founder with 1 tokens"
    )
    assert "votes on the metadata" in of_node(history, 1)
    history.does(register(5, "dc1", "r1"))
    history.does(replacing(6, history.now.directory.by_id[FOUR]))
    assert of_node(history, 5) == ["is registered as node 5 at 10.0.1.5:7000 in dc1/r1"]
    assert of_node(history, 6) == [
        "is registered as node 6 at 10.0.1.6:7000 in dc1/r1, to take the place of node 4"
    ]


def test_a_newcomer_tells_how_it_joined_and_the_others_what_they_gave() -> None:
    history = told()
    history.does(register(5, "dc1", "r1"))
    history.does(PrepareOperation(Bootstrap(NodeId(5), (350, 360))))
    run_out(history, 1)
    texts = of_node(history, 5)
    assert texts[1:] == [
        "begins to join the ring",
        "request 1 (bootstrap of node 5): is asked for",
        "request 1 (bootstrap of node 5): begins as operation 1, after no wait",
        "operation 1 (bootstrap of node 5) is to give it 2 ranges and take 0 from it",
        "has joined the ring with 2 tokens",
        "request 1 (bootstrap of node 5): is done",
    ]
    assert of_node(history, 1) == [
        "operation 1 (bootstrap of node 5) is to give it 0 ranges and take 1 from it",
        "operation 1 (bootstrap of node 5) has ended",
    ]
    assert of_node(history, 3) == [], "its ranges stay as they are"


def test_a_node_tells_of_its_address_version_tokens_and_what_was_done_to_it() -> None:
    history = told()
    three = NodeId(3)
    here = history.now.directory.by_id[three]
    for address, version in (("10.9.9.9", "1"), ("10.9.9.9", "2")):
        history.does(UpdateNode(three, address, 7001, here.cql_port, here.admin_port, version))
    assert of_node(history, 3) == ["is now at 10.9.9.9:7001 in dc1/r1", "runs version 2"]
    history.first = len(history.values) - 1
    history.does(PrepareOperation(Move(three, (300, 320))))
    run_out(history, 1)
    assert "owns 2 tokens, 1 of them new" in of_node(history, 3)
    history.first = len(history.values) - 1
    history.does(PrepareOperation(Rebuild(three)))
    history.does(CancelRequest(2, "too slow"))
    run_out(history, 2)
    texts = of_node(history, 3)
    assert texts[0] == "begins to fill its ranges anew" and "is normal again" in texts
    assert texts[-1] == "request 2 (rebuild of node 3): is cancelled: too slow"


def test_votes_and_exclusions_are_told_when_they_begin_and_when_they_end() -> None:
    history = told()
    history.does(ExcludeNodes((FOUR,), "suspect"))
    history.does(IncludeNodes((FOUR,), (history.now.epoch,)))
    history.does(PrepareMembership((NodeId(2),), (NodeId(1),)))
    change = history.now.service.change
    assert change is not None
    history.does(AdvanceMembership(change.id, 0, (NodeId(1), NodeId(2))))
    history.does(AdvanceMembership(change.id, 1, (NodeId(2),)))
    assert of_node(history, 4) == ["is shut out: suspect", "is taken back"]
    assert of_node(history, 2) == ["votes on the metadata"]
    assert of_node(history, 1) == ["votes on the metadata no more"]
    assert of_node(history, 9) == []


def test_an_operation_tells_why_it_is_cancelled_once_and_how_many_ranges_it_has_once() -> None:
    history = told()
    run(history, cancel_at=1)
    texts = history.story(lambda before, after: story.of_operation(before, after, 1))
    assert texts == [
        "enters prepared (reads old, writes old, work wipe, 2 ranges)",
        "enters write_both_read_old (reads old, writes union, work stream)",
        "enters rollback_to_normal (reads old, writes old, work discard); cancelled: changed my mind",
        "leaves rollback_to_normal and ends: changed my mind",
    ]
    assert history.story(lambda before, after: story.of_operation(before, after, 7)) == []


def test_a_request_that_is_forgotten_says_how_it_had_ended() -> None:
    history = told()
    history.does(EnqueueRequest(Decommission(FOUR)))
    history.does(CancelRequest(1, "no"))
    for number in range(2, REQUESTS_ENDED_KEPT_MAX + 2):
        history.does(EnqueueRequest(Decommission(FOUR)))
        history.does(CancelRequest(number, "no"))
    texts = history.story(lambda before, after: story.of_request(before, after, 1))
    assert texts == [
        "is asked for",
        "is next in the queue",
        "is cancelled: no",
        "is forgotten as one of the oldest that ended; it was cancelled",
    ]


def test_a_token_tells_of_the_end_of_its_keyspace_and_nothing_of_what_left_it_alone() -> None:
    history = told()
    history.does(EnqueueRequest(Decommission(FOUR)))
    history.does(CancelRequest(1, "no"))
    history.does(SetKeyspaces(()))
    history.does(SetKeyspaces((("ks", simple(1)),)))
    texts = history.story(lambda before, after: story.of_token(before, after, "ks", 350))
    assert texts == ["keyspace ks is dropped", "owned by node 4"]


def test_an_epoch_tells_each_thing_once_and_nothing_of_those_it_left_alone() -> None:
    history = told()
    run(history)
    begun = history.first + 1
    before, after = history.values[begun : begun + 2]
    texts = list(story.of_epoch(before, after))
    assert texts[:1] == ["node 4 begins to leave the ring"]
    assert all(not text.startswith("node 4 request") for text in texts) and len(texts) == len(set(texts))
    assert [text for text in texts if text.startswith("request 1 (decommission of node 4): enters")]
    assert not [text for text in texts if text.startswith(("node 1", "node 2", "node 3"))]
    history.does(ExcludeNodes((NodeId(3),), "late"))
    assert list(story.of_epoch(history.values[-2], history.now)) == ["node 3 is shut out: late"]
    history.does(IncludeNodes((NodeId(3),), (history.now.epoch,)))
    assert list(story.of_epoch(history.values[-2], history.now)) == ["node 3 is taken back"]
