"""Answers to requests of other nodes: each at most once, and what is not answered any more counts no more."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from lockstep.internode import verbs
from lockstep.internode.frames import ERROR, REPLY
from lockstep.internode.handshake import PeerInfo
from lockstep.internode.own_side import LinkFaults
from lockstep.internode.serving import Respond
from lockstep.replica.messages import ReadRequest, WriteReply
from lockstep.values.codec import encode
from lockstep.values.errors import Overloaded

from .clusters import TABLE_ID, make_nodes, read_one, whole_ring
from .support import run

BODY = encode(WriteReply(7))


class Connection:
    """One of a node; `serving` requests of it are being answered."""

    def __init__(self, serving: int, *, peer: PeerInfo | None = None, has_room: bool = True) -> None:
        self.serving = serving
        self.peer = peer
        self.has_room = has_room
        self.shared: list[tuple[int, list[int], bytes]] = []

    def shares(self, body: bytes) -> bool:
        return len(body) < 100 and self.has_room

    def reply_all(self, verb: int, streams: list[int], body: bytes) -> None:
        self.shared.append((verb, list(streams), body))


class Node:
    def __init__(self) -> None:
        self.faults = LinkFaults()
        self.answers: list[tuple[Connection, int, int, int]] = []
        self.notes: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
        self.repeated_log = self

    def answer(self, connection: Connection, verb: int, stream: int, flags: int, body: bytes) -> None:
        self.answers.append((connection, verb, stream, flags))

    def note(self, *what: Any, facts: Callable[[], dict[str, Any]]) -> None:
        self.notes.append((what, facts()))


def respond(node: Node, connection: Connection, stream: int, verb: int = verbs.WRITE) -> Respond:
    return Respond(node, connection, verb, stream)  # type: ignore[arg-type]


def test_an_answer_is_sent_once_and_the_request_counts_no_more() -> None:
    node, connection = Node(), Connection(3)
    answer = respond(node, connection, 5)
    answer(WriteReply(7))
    assert node.answers == [(connection, verbs.WRITE, 5, REPLY)] and connection.serving == 2
    with pytest.raises(AssertionError):
        answer(WriteReply(7))
    answer.release()
    assert connection.serving == 2, "it was answered"


def test_what_is_released_counts_once_no_more_and_is_not_heard() -> None:
    node, connection = Node(), Connection(3)
    answer = respond(node, connection, 5)
    answer.release()
    answer.release()
    assert connection.serving == 2
    answer(WriteReply(7))
    Respond.all([released := respond(node, connection, 6)], WriteReply(7))
    assert connection.serving == 1 and connection.shared == [(verbs.WRITE, [6], BODY)]
    assert not released.is_open and not node.answers
    another = respond(node, connection, 7)
    another.release()
    Respond.all([another], WriteReply(7))
    assert connection.serving == 0 and len(connection.shared) == 1


@pytest.mark.parametrize(("peer", "asker"), [(None, 0), (PeerInfo(4, "host4", "n4", 1, "node"), 4)])
def test_a_refusal_is_noted_with_who_asked(peer: PeerInfo | None, asker: int) -> None:
    node, connection = Node(), Connection(1, peer=peer)
    respond(node, connection, 5)(Overloaded("too much"))
    assert node.answers == [(connection, verbs.WRITE, 5, ERROR)] and connection.serving == 0
    name = verbs.NAMES[verbs.WRITE]
    ((what, facts),) = node.notes
    assert what == ("internode.request_refused", name, Overloaded.code)
    assert facts == {"verb": name, "of_node": asker, "code": Overloaded.code, "reason": "too much"}


def test_equal_answers_of_a_connection_and_verb_share_a_frame_where_there_is_room() -> None:
    node, roomy, full = Node(), Connection(4), Connection(2, has_room=False)
    answers = [respond(node, roomy, 1), respond(node, full, 2), respond(node, roomy, 3)]
    answers += [respond(node, roomy, 4, verbs.READ), respond(node, full, 5)]
    Respond.all(answers, WriteReply(7))
    assert roomy.shared == [(verbs.WRITE, [1, 3], BODY), (verbs.READ, [4], BODY)]
    assert [(connection, stream) for connection, _, stream, _ in node.answers] == [(full, 2), (full, 5)]
    assert (roomy.serving, full.serving) == (1, 0)
    assert not any(answer.is_open for answer in answers)


def test_what_must_be_looked_at_one_by_one_is_answered_so() -> None:
    node, connection = Node(), Connection(9)
    Respond.all([respond(node, connection, 1), respond(node, connection, 0)], WriteReply(7))
    node.faults.cut_off([("n4", 1)])
    Respond.all([respond(node, connection, 2), respond(node, connection, 3)], WriteReply(7))
    assert [stream for _, _, stream, _ in node.answers] == [1, 0, 2, 3] and not connection.shared
    assert connection.serving == 5


def test_a_read_is_refused_where_its_range_is_not_held() -> None:
    """What a replica lost of its store, it does not answer for."""

    async def test() -> None:
        _, (node, *_) = make_nodes(3, whole_ring(5, [1, 2, 3]))
        asked: list[tuple[int, int, int]] = []
        node.replica.require_held = lambda table, tokens: asked.append((table, tokens.left, tokens.right))
        assert node.replica.read_now(ReadRequest(5, 1, read_one(7))) is not None
        assert asked == [(TABLE_ID, 6, 7)]

    run(test)
