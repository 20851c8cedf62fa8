"""Reads that want to be told of rows, over replicas of which each lacks something.

The twin merges everything that any replica has, shows it and tells of that, which needs no cleverness.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.coordination import outlined, read_round
from lockstep.coordination.reads import Reads
from lockstep.scans.outline_reading import OutlineReading
from lockstep.scans.telling import FoldedValues, Telling, joined_given
from lockstep.storage.rows import keys
from lockstep.storage.rows.fragments import fragments_of
from lockstep.storage.rows.reconcile import merge_partitions
from lockstep.storage.rows.visible import counts_static, live_view
from lockstep.values.ids import Consistency
from lockstep.values.outlines import (
    REGULAR,
    Grouping,
    Outline,
    OutlineColumn,
    OutlineFilter,
    OutlineFold,
    Told,
)
from lockstep.values.rows import Partition, ReadCommand, ReadResult
from tests.scans.support import View

from .clusters import COLUMN, ScriptedNode, TinyEngine, read_one, read_range, upsert
from .support import run
from .test_reads import give
from .test_short_reads import TOKENS, diverged

VALUE = OutlineColumn(REGULAR, -1, COLUMN, "blob")
PACKS = Outline(("blob",), (("blob", False),), packs=(VALUE,))
FOLDS = Outline(
    ("blob",),
    (("blob", False),),
    folds=(OutlineFold("count"), OutlineFold("count", VALUE), OutlineFold("max", VALUE)),
)
GROUPS = msgspec.structs.replace(FOLDS, grouping=Grouping(0, (VALUE,), 3))
GIVES = Outline(
    ("blob",),
    (("blob", False),),
    filters=(OutlineFilter(VALUE, ">", b"v"),),
    gives=True,
)
#: (rows, packed rows, aggregates), of each group its key, first row and aggregates, and rows given by key.
Answer = tuple[Any, ...]


def tells(node: ScriptedNode) -> None:
    """Let the replica of a node answer outlines."""
    engine: TinyEngine = node.engine
    rows_of = engine.answer

    def answer(command: ReadCommand) -> ReadResult:
        if command.outline is None:
            return rows_of(command)
        pairs: dict[bytes, bytes] = {}
        for mutation in engine.applied:
            prefix = keys.partition_prefix(mutation.table_id, mutation.token, mutation.key)
            pairs.update((key, value) for _, key, value in fragments_of(mutation, prefix))
        reading = OutlineReading(View(sorted(pairs.items())), command, None)
        reading.run()
        return reading.result()

    engine.answer = answer  # type: ignore[method-assign]


def obvious(nodes: Sequence[ScriptedNode], command: ReadCommand) -> Answer:
    assert command.outline is not None
    places: dict[tuple[int, bytes], list[Partition]] = {}
    for node in nodes:
        for place, parts in node.engine.partitions.items():
            if command.left < place[0] <= command.right:
                places.setdefault(place, []).extend(parts)
    telling = Telling(command.outline)
    for place in sorted(places):
        live = live_view(merge_partitions(places[place]), command.now_s)
        telling.live(live, static_counts=counts_static(command, live.key))
    return answer_of(
        telling.told(), telling.given() if command.reads_static else without_static(telling.given())
    )


def without_static(given: Sequence[Partition]) -> list[Partition]:
    """Who does not ask for it may get it or not."""
    return [msgspec.structs.replace(one, static=None) for one in given]


def answer_of(told: Told, given: Sequence[Partition]) -> Answer:
    groups: list[tuple[bytes, bytes, list[FoldedValues]]] = []
    for one in told.groups:
        if not groups or groups[-1][0] != one.key:
            groups.append((one.key, one.first, [FoldedValues(fold) for fold in FOLDS.folds]))
        for whole, part in zip(groups[-1][2], one.folds, strict=True):
            whole.add_told(part)
    shown = tuple((key, first, tuple(one.told() for one in folds)) for key, first, folds in groups)
    rows = tuple((one.key, one.static, one.rows) for one in joined_given(given))
    found = told.rows, told.packed, told.folds
    return (*found, shown, rows) if shown or rows else found


async def all_of(node: ScriptedNode, command: ReadCommand, level: Consistency) -> tuple[Answer, int]:
    """What is told of all pages together, and how many pages these were."""
    outline = command.outline
    assert outline is not None
    parts: list[Told] = []
    given: list[Partition] = []
    while True:
        read = await node.coordinator.read(command, level, 1_000)
        told, partitions = read.told, read.partitions
        if told is None:
            telling = Telling(outline)
            for partition in read.partitions:
                telling.live(partition, static_counts=counts_static(command, partition.key))
            told, partitions = telling.told(), telling.given()
        assert told.rows <= command.row_limit
        parts.append(told)
        given += partitions
        if not read.more:
            return answer_of(
                outlined.joined(outline, parts), given if command.reads_static else without_static(given)
            ), len(parts)
        assert read.end is not None
        assert read.told is None or told.rows == command.row_limit or told.closed
        command = msgspec.structs.replace(command, after=read.end)


@pytest.fixture(autouse=True, params=[False, True], ids=["whole", "by-digest"])
def by_digest(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param:
        monkeypatch.setattr(read_round, "DIGEST_OVER_BYTES", 1)


commands = st.builds(
    lambda token, outline, static, limit: msgspec.structs.replace(
        read_range() if token is None else read_one(token),
        outline=outline,
        reads_static=static,
        row_limit=limit,
    ),
    st.one_of(st.none(), st.integers(0, TOKENS - 1)),
    st.sampled_from([PACKS, FOLDS, GROUPS, GIVES]),
    st.booleans(),
    st.integers(1, 8),
)


@settings(max_examples=120, deadline=None)
@given(st.integers(0, 1 << 20), commands, st.sets(st.integers(0, 2)))
def test_what_is_told_of_replicas_is_what_they_hold_together(
    seed: int, command: ReadCommand, telling: set[int]
) -> None:
    """Replicas that do not tell give rows, as all do of few."""

    async def main() -> None:
        nodes = diverged(seed)
        for number in sorted(telling):
            tells(nodes[number])
        expected = obvious(nodes, command)
        found, _ = await all_of(nodes[0], command, Consistency.ALL)
        assert found == expected

    run(main)


def pair(*values: bytes) -> list[ScriptedNode]:
    """Three nodes that hold the same rows of one partition, and tell of them."""
    nodes = diverged(0)
    for node in nodes:
        node.engine.partitions.clear()
        node.engine.applied.clear()
        tells(node)
    for number, value in enumerate(values):
        give(nodes, upsert(2, b"%03d" % number, value, 5, number))
    return nodes


def test_replicas_that_agree_are_asked_for_no_rows() -> None:
    async def main() -> None:
        nodes = pair(*[b"v%d" % number for number in range(40)])
        asked: list[ReadCommand] = []
        for node in nodes:
            note(node, asked)
        command = msgspec.structs.replace(read_one(2), outline=FOLDS, row_limit=1000)
        found, pages = await all_of(nodes[0], command, Consistency.QUORUM)
        assert found == (40, b"", ((40, None), (40, None), (40, b"v9"))) and pages == 1
        assert asked and all(one.outline is not None for one in asked)

    run(main)


def test_replicas_that_differ_are_read_and_repaired() -> None:
    async def main() -> None:
        nodes = pair(b"a", b"b", b"c")
        give(nodes[:1], upsert(2, b"001", b"z", 9, 77))
        command = msgspec.structs.replace(read_one(2), outline=FOLDS, row_limit=1000)
        found, _ = await all_of(nodes[1], command, Consistency.ALL)
        assert found == (3, b"", ((3, None), (3, None), (3, b"z")))
        asked: list[ReadCommand] = []
        note(nodes[2], asked)
        again, _ = await all_of(nodes[1], command, Consistency.ALL)
        assert again == found
        assert all(one.outline is not None for one in asked), "what differed was repaired"

    run(main)


def test_a_replica_that_answers_rows_is_one_that_cannot_tell() -> None:
    """One whose code knows no outlines."""

    async def main() -> None:
        nodes = pair(b"a", b"b", b"c")
        rows_of = nodes[2].engine.answer
        nodes[2].engine.answer = lambda command: rows_of(  # type: ignore[method-assign]
            msgspec.structs.replace(command, outline=None)
        )
        assert rows_of(msgspec.structs.replace(read_one(2), outline=FOLDS)).told is not None
        for outline in (FOLDS, PACKS, GROUPS, GIVES):
            command = msgspec.structs.replace(read_one(2), outline=outline, row_limit=2)
            found, _ = await all_of(nodes[0], command, Consistency.ALL)
            assert found == obvious(nodes, command)

    run(main)


def test_a_replica_of_an_older_edition_is_not_believed() -> None:
    """It knows neither groups nor rows that are given, and tells of all rows."""

    async def main() -> None:
        nodes = pair(b"a", b"v1", b"v2")
        for node in nodes:
            older(node)
        for outline in (FOLDS, GROUPS, GIVES):
            command = msgspec.structs.replace(read_one(2), outline=outline, row_limit=9)
            found, _ = await all_of(nodes[0], command, Consistency.ONE)
            assert found == obvious(nodes, command)

    run(main)


def older(node: ScriptedNode) -> None:
    told_of = node.engine.answer

    def answer(command: ReadCommand) -> ReadResult:
        outline = command.outline
        if outline is not None:
            outline = msgspec.structs.replace(outline, grouping=None, gives=False)
        found = told_of(msgspec.structs.replace(command, outline=outline))
        told = None if found.told is None else msgspec.structs.replace(found.told, edition=0)
        return msgspec.structs.replace(found, told=told)

    node.engine.answer = answer  # type: ignore[method-assign]


def test_what_is_told_wrongly_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A planted fault: the first answer is taken though another replica tells something else."""

    async def first(reads: Any, piece: ReadCommand, level: Consistency, deadline_s: float) -> Any:
        answers, asked, _ = await reads._ask(piece, level, deadline_s)
        return min((reply.result for _, reply in answers), key=lambda one: one.told.rows), asked

    async def main() -> None:
        nodes = pair(b"a", b"b", b"c")
        give(nodes[:1], upsert(2, b"009", b"z", 9, 77))
        monkeypatch.setattr(Reads, "_told", first)
        command = msgspec.structs.replace(read_one(2), outline=FOLDS, row_limit=1000)
        found, _ = await all_of(nodes[1], command, Consistency.ALL)
        assert found != obvious(nodes, command)

    run(main)


def note(node: ScriptedNode, asked: list[ReadCommand]) -> None:
    told_of = node.engine.answer

    def answer(command: ReadCommand) -> ReadResult:
        asked.append(command)
        return told_of(command)

    node.engine.answer = answer  # type: ignore[method-assign]
