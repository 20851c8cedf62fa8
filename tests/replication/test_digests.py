"""Answers told by digest: when, what disagreement leads to, and that equal content has equal ones."""

from __future__ import annotations

import random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.coordination import read_round
from lockstep.internode import verbs
from lockstep.replica import merging
from lockstep.replica.messages import ReadReply, ReadRequest
from lockstep.storage.rows.reconcile import merge_partitions
from lockstep.storage.rows.visible import weigh
from lockstep.values.errors import CorruptFile, ReadTimeout
from lockstep.values.ids import Consistency
from lockstep.values.rows import (
    Cell,
    ColumnDeletion,
    Deletion,
    Liveness,
    Mutation,
    Partition,
    RangeDeletion,
    ReadCommand,
    ReadResult,
    Row,
)

from .clusters import ScriptedNode, deletion, key_of, make_nodes, read_one, shown, upsert, whole_ring
from .support import run
from .test_reads import diverged, give, obvious

QUORUM = Consistency.QUORUM
LARGE = b"x" * 5000


class Heard:
    """What a node answers from now on, and whether by digest."""

    def __init__(self, nodes: list[ScriptedNode]) -> None:
        self.replies: list[tuple[int, bool]] = []
        for node in nodes:
            self._listen(node)

    def _listen(self, node: ScriptedNode) -> None:
        decoder, handler = node.internode.fast[verbs.READ]

        def heard(peer: object, request: ReadRequest, respond: object) -> None:
            def answer(reply: object) -> None:
                if isinstance(reply, ReadReply):
                    self.replies.append((node.node, bool(reply.digest)))
                respond(reply)  # type: ignore[operator]

            handler(peer, request, answer)

        node.internode.fast[verbs.READ] = (decoder, heard)


def test_a_large_answer_comes_once_and_the_others_agree_by_digest() -> None:
    async def test() -> None:
        _, nodes = make_nodes(3, whole_ring(5, [1, 2, 3]))
        give(nodes, upsert(1, b"a", LARGE))
        heard = Heard(nodes)
        result = await nodes[0].coordinator.read(read_one(1), Consistency.ALL, 1000)
        assert shown(result) == [(1, b"a", LARGE)]
        assert heard.replies == [(3, True), (2, True)], "this node's own answer is the one that comes whole"
        assert nodes[0].coordinator.extra_requests().digest_mismatches == 0

    run(test)


def test_a_small_answer_comes_whole_from_everybody() -> None:
    async def test() -> None:
        _, nodes = make_nodes(3, whole_ring(5, [1, 2, 3]))
        give(nodes, upsert(1, b"a", b"small"))
        heard = Heard(nodes)
        await nodes[0].coordinator.read(read_one(1), Consistency.ALL, 1000)
        assert {by_digest for _, by_digest in heard.replies} == {False}

    run(test)


def test_whoever_disagrees_is_asked_for_its_answer_and_repaired() -> None:
    async def test() -> None:
        _, nodes = make_nodes(3, whole_ring(5, [1, 2, 3]))
        give(nodes, upsert(1, b"a", LARGE, 5))
        give(nodes[1:2], upsert(1, b"b", b"newer", 9, 2))
        heard = Heard(nodes)
        result = await nodes[0].coordinator.read(read_one(1), Consistency.ALL, 1000)
        assert shown(result) == [(1, b"a", LARGE), (1, b"b", b"newer")]
        assert heard.replies == [(3, True), (2, True), (2, False)], "node 3 agrees with this one"
        assert nodes[0].coordinator.extra_requests().digest_mismatches == 1
        for node in nodes:
            assert shown(await node.engine.read(read_one(1))) == shown(result)

    run(test)


def test_an_answer_that_is_lost_is_asked_of_one_who_told_its_digest() -> None:
    async def test() -> None:
        _, nodes = make_nodes(4, whole_ring(5, [1, 2, 3], factors={"": 3}, dcs={4: "dc1"}))
        give(nodes[:3], upsert(1, b"a", LARGE))

        def broken(command: ReadCommand) -> ReadResult:
            raise CorruptFile("sst", 3, "checksum")

        nodes[0].engine.answer = broken  # type: ignore[method-assign]
        heard = Heard(nodes)
        assert shown(await nodes[3].coordinator.read(read_one(1), QUORUM, 1000)) == [(1, b"a", LARGE)]
        assert sum(not by_digest for _, by_digest in heard.replies) <= 2

    run(test)


def test_digests_without_an_answer_are_a_timeout_without_data() -> None:
    async def test() -> None:
        wire, nodes = make_nodes(4, whole_ring(5, [1, 2, 3], factors={"": 3}, dcs={4: "dc1"}))
        give(nodes[:3], upsert(1, b"a", LARGE))
        # Only the one that was asked for a digest is reached.
        wire.lose = lambda address, verb: address in {("n1", 1), ("n3", 1)}
        with pytest.raises(ReadTimeout) as caught:
            await nodes[3].coordinator.read(read_one(1), QUORUM, 100)
        assert (caught.value.received, caught.value.required, caught.value.data_present) == (1, 2, False)

    run(test)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32), limit=st.integers(1, 6), reverse=st.booleans(), token=st.integers(0, 4))
def test_pages_by_digest_join_to_the_obvious_answer(seed: int, limit: int, reverse: bool, token: int) -> None:
    async def test() -> None:
        nodes, held = diverged(seed)
        command = read_one(token, row_limit=0, reverse=reverse)
        wanted = [row for row in obvious(held, command) if row[0] == token]
        got: list[tuple[int, bytes, bytes]] = []
        for _ in range(len(wanted) + 2):
            piece = msgspec.structs.replace(command, row_limit=limit)
            page = await nodes[seed % 3].coordinator.read(piece, Consistency.ALL, 5000)
            got += shown(page)
            command = msgspec.structs.replace(command, after=page.end)
            if not page.more:
                break
        assert got == wanted

    before, read_round.DIGEST_OVER_BYTES = read_round.DIGEST_OVER_BYTES, 1
    try:
        run(test)
    finally:
        read_round.DIGEST_OVER_BYTES = before


def random_state(rng: random.Random) -> Partition:
    """A part of a partition: any kind of content, with few places and times so that much of it meets."""
    at = rng.randrange(1, 6)
    kind = rng.randrange(6)
    row = Row(b"%d" % rng.randrange(4))
    if kind == 0:
        return Partition(1, b"k", Deletion(at, 7))
    if kind == 1:
        start = rng.randrange(4)
        return Partition(1, b"k", None, (RangeDeletion(b"%d" % start, b"%d" % (start + 2), Deletion(at, 7)),))
    if kind == 2:
        row = msgspec.structs.replace(row, deletion=Deletion(at, 7))
    elif kind == 3:
        row = msgspec.structs.replace(row, column_deletions=(ColumnDeletion(2, Deletion(at, 7)),))
    else:
        cell = Cell(rng.randrange(1, 3), rng.choice((b"v", b"w", None)), at, 0, 0, rng.choice((None, b"p")))
        row = msgspec.structs.replace(row, liveness=Liveness(at) if kind == 4 else None, cells=(cell,))
    if rng.random() < 0.2 and row.deletion is None:
        return Partition(1, b"k", static=msgspec.structs.replace(row, clustering=b""))
    return Partition(1, b"k", rows=(row,))


@settings(max_examples=200, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_equal_content_has_one_digest_whatever_was_merged_first(seed: int) -> None:
    rng = random.Random(seed)
    parts = [random_state(rng) for _ in range(rng.randrange(1, 12))]

    def merged() -> Partition:
        """Some of the parts twice, merged in groups, and the groups merged."""
        left = [*parts, *rng.sample(parts, rng.randrange(len(parts)))]
        rng.shuffle(left)
        groups = []
        while left:
            size = rng.randrange(1, 4)
            groups.append(merge_partitions(left[:size]))
            left = left[size:]
        return merge_partitions(groups)

    once, again = merged(), merged()
    assert merging.digest_of(ReadResult((once,))) == merging.digest_of(ReadResult((again,)))
    other = msgspec.structs.replace(once, deletion=Deletion(99, 7))
    assert merging.digest_of(ReadResult((other,))) != merging.digest_of(ReadResult((once,)))
    assert merging.digest_of(ReadResult((once,), True)) != merging.digest_of(ReadResult((once,)))


def test_what_counts_as_dead() -> None:
    live = Row(b"a", Liveness(1), None, (Cell(2, b"v", 1), Cell(3, None, 1, 0, 5), Cell(4, b"v", 1, 10, 50)))
    deleted = Row(b"b", None, Deletion(1, 5))
    ranges = (RangeDeletion(b"c", b"d", Deletion(1, 5)),)
    static = Row(b"", None, None, (Cell(9, None, 1, 0, 5),))
    partition = Partition(1, key_of(1), Deletion(0, 5), ranges, static, (live, deleted))
    assert weigh((partition,), 10)[0] == 4, "a cell, a row, a range and the static cell"
    assert weigh((partition,), 50)[0] == 5, "one cell has expired"
    covered = Partition(1, key_of(1), rows=(Row(b"a", Liveness(3), Deletion(1, 5), (Cell(2, b"v", 3),)),))
    assert weigh((covered,), 10)[0] == 0, "a row that was written again"


def test_a_digest_tells_how_much_was_scanned() -> None:
    async def test() -> None:
        _, nodes = make_nodes(1, whole_ring(5, [1], factors={"": 1}))
        gone: list[Mutation] = [deletion(1, b"%03d" % i, 5, i) for i in range(60)]
        give(nodes, *gone)
        request = ReadRequest(5, 1, read_one(1), 100)
        whole = nodes[0].replica.read_now(msgspec.structs.replace(request, digest_over_bytes=0))
        reply = nodes[0].replica.read_now(request)
        assert reply is not None and whole is not None
        assert reply.digest == merging.digest_of(whole.result) and reply.dead == whole.dead == 60
        assert merging.filled_in(reply, {reply.digest: whole.result}) == whole

    run(test)
