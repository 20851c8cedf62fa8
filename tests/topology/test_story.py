"""Stories are told from the values before and after an entry, so they cannot leave one out."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.excluded import ExcludeNodes
from lockstep.metadata.operations import OperationKind
from lockstep.topology import story
from lockstep.topology.requests import CancelRequest, EnqueueRequest
from lockstep.topology.transformations import AdvanceOperation, preparation
from lockstep.values.ids import NodeId
from tests.metadata.histories import History, simple, started

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
    history.does(EnqueueRequest(OperationKind.DECOMMISSION, FOUR, actor="ann"))
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
    history.does(EnqueueRequest(OperationKind.DECOMMISSION, FOUR))
    history.does(preparation(history.now.requests.queue[0], history.now.requests.queue[0].id))
    history.does(EnqueueRequest(OperationKind.MOVE, NodeId(1), (350,)))
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
