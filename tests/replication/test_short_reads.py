"""Limits over replicas of which each lacks something: static rows, reverse order, slices and pages.

The twin merges everything that any replica has and then cuts it, which needs no cleverness.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.coordination import page, read_round
from lockstep.replica import merging
from lockstep.storage.rows.reconcile import merge_partitions
from lockstep.storage.rows.visible import live_view
from lockstep.values.ids import Consistency, mutation_id
from lockstep.values.rows import Cell, Deletion, Mutation, Partition, ReadCommand, ReadResult, Row
from lockstep.values.tokens import TOKEN_MAX

from .clusters import (
    COLUMN,
    TABLE_ID,
    ScriptedNode,
    deletion,
    key_of,
    make_cluster,
    make_nodes,
    read_one,
    read_range,
    upsert,
)
from .support import run
from .test_reads import give

#: (token, clustering): a row, or a partition that shows only its static row.
Seen = tuple[int, bytes | None]
TOKENS = 4


def of_static(token: int, at: int, number: int, *, dead: bool) -> Mutation:
    cell = Cell(COLUMN, None if dead else b"s", at, 0, 1 if dead else 0)
    name = mutation_id(97, 1, number)
    return Mutation(TABLE_ID, token, key_of(token), name, at, static=Row(b"", cells=(cell,)))


def of_partition(token: int, at: int, number: int) -> Mutation:
    return Mutation(TABLE_ID, token, key_of(token), mutation_id(96, 1, number), at, Deletion(at, 1))


def diverged(seed: int) -> list[ScriptedNode]:
    """Three replicas of two ranges, each of which missed some writes of rows and static rows."""
    rng = random.Random(seed)
    cluster = make_cluster(5, [(1, [1, 2, 3], [1, 2, 3], 1), (TOKEN_MAX, [2, 3, 1], [2, 3, 1], 1)])
    _, nodes = make_nodes(3, cluster)
    for number in range(rng.randrange(1, 40)):
        token, clustering = rng.randrange(TOKENS), b"%d" % rng.randrange(6)
        at, kind = rng.randrange(1, 6), rng.random()
        if kind < 0.5:
            mutation = upsert(token, clustering, b"v%d" % number, at, number)
        elif kind < 0.75:
            mutation = deletion(token, clustering, at, number)
        elif kind < 0.97:
            mutation = of_static(token, at, number, dead=kind > 0.9)
        else:
            mutation = of_partition(token, at, number)
        give([node for node in nodes if rng.random() < 0.6], mutation)
    return nodes


def obvious(nodes: Sequence[ScriptedNode], command: ReadCommand) -> list[Seen]:
    by_token: dict[int, list[Partition]] = {}
    for node in nodes:
        for (token, _), parts in node.engine.partitions.items():
            if command.left < token <= command.right:
                by_token.setdefault(token, []).extend(parts)
    seen: list[Seen] = []
    for token in sorted(by_token):
        live = live_view(merge_partitions(by_token[token], reverse=command.reverse), command.now_s)
        rows = [row.clustering for row in live.rows][: command.partition_row_limit or None]
        seen += [(token, clustering) for clustering in rows]
        if not rows and live.static is not None and command.reads_static:
            seen.append((token, None))
    return seen[: command.row_limit or None]


def shown(result: ReadResult) -> list[Seen]:
    seen: list[Seen] = []
    for partition in result.partitions:
        seen += [(partition.token, row.clustering) for row in partition.rows]
        if not partition.rows and partition.static is not None:
            seen.append((partition.token, None))
    return seen


commands = st.builds(
    lambda token, static, reverse, limit, each: msgspec.structs.replace(
        read_range() if token is None else read_one(token),
        reads_static=static,
        reverse=reverse,
        row_limit=limit,
        partition_row_limit=each,
    ),
    st.one_of(st.none(), st.integers(0, TOKENS - 1)),
    st.booleans(),
    st.booleans(),
    st.integers(0, 8),
    st.sampled_from([0, 0, 1, 2, 3]),
)


@pytest.fixture(autouse=True, params=[False, True], ids=["whole", "by-digest"])
def by_digest(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param:
        monkeypatch.setattr(read_round, "DIGEST_OVER_BYTES", 1)


def check_limits(seed: int, command: ReadCommand) -> None:
    async def test() -> None:
        nodes = diverged(seed)
        wanted = obvious(nodes, command)
        result = await nodes[seed % 3].coordinator.read(command, Consistency.ALL, 5000)
        assert shown(result) == wanted

    run(test)


def check_pages(seed: int, command: ReadCommand, size: int) -> None:
    """Each page is asked of another coordinator, as a client may."""

    async def test() -> None:
        nodes = diverged(seed)
        wanted = obvious(nodes, command)
        got: list[Seen] = []
        left = command
        for turn in range(len(wanted) + 2):
            piece = msgspec.structs.replace(left, row_limit=size)
            found = await nodes[turn % 3].coordinator.read(piece, Consistency.ALL, 5000)
            assert len(shown(found)) == size or not found.more
            got += shown(found)
            if not found.more:
                break
            left = msgspec.structs.replace(left, after=found.end)
        assert got == wanted

    run(test)


@settings(max_examples=120, deadline=None)
@given(seed=st.integers(0, 2**32), command=commands)
def test_limits_give_the_obvious_answer(seed: int, command: ReadCommand) -> None:
    check_limits(seed, command)


@settings(max_examples=120, deadline=None)
@given(seed=st.integers(0, 2**32), command=commands, size=st.integers(1, 5))
def test_pages_from_any_coordinator_join_to_the_obvious_answer(
    seed: int, command: ReadCommand, size: int
) -> None:
    check_pages(seed, msgspec.structs.replace(command, row_limit=0, partition_row_limit=0), size)


def test_an_answer_that_is_not_cut_where_knowledge_ends_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merging, "earlier", lambda left, right, reverse: left or right)
    plain = read_range(row_limit=2)
    with pytest.raises(AssertionError):
        for seed in range(200):
            check_limits(seed, plain)


def test_a_page_that_goes_on_behind_its_last_partition_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page.Page, "skip_full", lambda self, end: page.Position(end.token, end.key))
    with pytest.raises(AssertionError):
        for seed in range(200):
            check_pages(seed, read_range(row_limit=0), 2)
