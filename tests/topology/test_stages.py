"""The stage tables are sound, and each way to break one is noticed."""

from __future__ import annotations

import msgspec
import pytest

from lockstep.metadata.operations import Stage
from lockstep.topology.kinds.registry import BY_NAME
from lockstep.topology.stages import Drain, Side, StageRow, Work, mermaid, problems

ROWS = BY_NAME["bootstrap"].stages


@pytest.mark.parametrize("kind", list(BY_NAME))
def test_every_kind_has_a_sound_table(kind: str) -> None:
    assert problems(BY_NAME[kind].stages) == ()


@pytest.mark.parametrize(
    ("stage", "change", "problem"),
    [
        (Stage.WRITE_BOTH_READ_OLD, {"drain": Drain.NONE}, "streams without draining its sources"),
        (
            Stage.JOIN_GROUP0,
            {"work": Work.STREAM, "drain": Drain.SOURCES},
            "streams to replicas that get no writes",
        ),
        (Stage.WRITE_BOTH_READ_OLD, {"on_failure": None}, "has work that can fail and no way back"),
        (Stage.NEW_ONLY, {"next": Stage.JOIN_GROUP0}, "never ends"),
        (Stage.CLEANUP, {"drain": Drain.NONE}, "wipes ranges that may still be read"),
        (Stage.CLEANUP, {"in_use": (Side.UNION, Side.NEW)}, "of a group that is still in use"),
        (Stage.ROLLBACK_TO_NORMAL, {"drain": Drain.NONE}, "wipes ranges that may still be read"),
        (Stage.ROLLBACK_TO_NORMAL, {"in_use": tuple(Side)}, "wipes new replicas that may be read"),
        (Stage.CLEANUP, {"writes": Side.UNION}, "ends while both sides are written"),
        (Stage.NEW_ONLY, {"writes": Side.OLD}, "reads new and writes only old"),
        (Stage.NEW_ONLY, {"in_use": (Side.UNION,)}, "does not count its own groups"),
        (
            Stage.COMMIT_CDC_GENERATION,
            {"next": Stage.WRITE_BOTH_READ_NEW},
            "changes reads and writes at once",
        ),
        (Stage.WRITE_BOTH_READ_OLD, {"next": Stage.NEW_ONLY}, "changes reads and writes at once"),
        (Stage.WRITE_BOTH_READ_OLD, {"work": Work.NONE}, "reads new replicas that were never filled"),
        (Stage.WRITE_BOTH_READ_NEW, {"on_failure": Stage.ROLLBACK_TO_NORMAL}, "although reads have moved"),
    ],
)
def test_a_broken_table_is_refused(stage: Stage, change: dict[str, object], problem: str) -> None:
    rows = [msgspec.structs.replace(row, **change) if row.stage is stage else row for row in ROWS]
    assert any(problem in found for found in problems(rows)), problems(rows)


def test_a_step_to_a_stage_without_a_row_is_refused() -> None:
    rows: list[StageRow] = [row for row in ROWS if row.stage is not Stage.ROLLBACK_TO_NORMAL]
    assert "join_group0 leads to rollback_to_normal, which has no row" in problems(rows)
    assert "a stage has two rows" in problems([*ROWS, ROWS[0]])


def table_text(kind: str) -> list[str]:
    """One line a row: reads, writes, groups in use, drain, work, where it leads, where failure leads."""
    return [
        f"{row.stage}: {row.reads} {row.writes} {'+'.join(row.in_use)} {row.drain} {row.work} "
        f"{row.next or '-'} {row.on_failure or '-'}{' pending' if row.pending_votes else ''}"
        for row in BY_NAME[kind].stages
    ]


def test_ranges_move_by_these_rows() -> None:
    assert table_text("bootstrap") == [
        "join_group0: old old old+union none wipe commit_cdc_generation rollback_to_normal",
        "commit_cdc_generation: old old old+union none none write_both_read_old rollback_to_normal",
        "write_both_read_old: old union old+union sources stream write_both_read_new rollback_to_normal",
        "write_both_read_new: new union old+union+new none none new_only -",
        "new_only: new new union+new none none cleanup -",
        "cleanup: new new new workers cleanup - -",
        "rollback_to_normal: old old old+union workers discard - - pending",
    ]
    rows = {kind: table_text(kind) for kind in BY_NAME}
    # The others differ in what their ends are called, and make no generation.
    plain = [row for row in rows["bootstrap"] if not row.startswith("commit_cdc_generation")]
    plain[0] = plain[0].replace("commit_cdc_generation", "write_both_read_old")
    for kind, first, last in (
        ("decommission", "prepared", "left_token_ring"),
        ("remove", "prepared", "left_token_ring"),
        ("replace", "join_group0", "left_token_ring"),
        ("move", "prepared", "new_only"),
        ("replication_change", "prepared", "new_only"),
    ):
        wanted = [row.replace("join_group0", first).replace("new_only", last) for row in plain]
        assert rows[kind] == wanted, kind


def test_a_rebuild_only_fills() -> None:
    assert table_text("rebuild") == [
        "rebuilding: old old old sources rebuild - rollback_to_normal",
        "rollback_to_normal: old old old none none - -",
    ]


def test_the_diagram_of_a_rebuild_in_full() -> None:
    assert mermaid(BY_NAME["rebuild"].stages) == (
        "stateDiagram-v2\n"
        "  [*] --> rebuilding\n"
        "  rebuilding : reads old, writes old, drain sources, work rebuild\n"
        "  rebuilding --> [*] : barrier\n"
        "  rebuilding --> rollback_to_normal : cancel or failure\n"
        "  rollback_to_normal : reads old, writes old, drain none, work none\n"
        "  rollback_to_normal --> [*] : barrier\n"
    )


def test_the_diagram_shows_every_step() -> None:
    diagram = mermaid(BY_NAME["decommission"].stages)
    assert diagram.startswith("stateDiagram-v2\n  [*] --> prepared\n")
    for edge in (
        "prepared --> write_both_read_old",
        "write_both_read_old --> write_both_read_new",
        "write_both_read_new --> left_token_ring",
        "left_token_ring --> cleanup",
        "cleanup --> [*]",
        "write_both_read_old --> rollback_to_normal : cancel",
        "rollback_to_normal --> [*]",
    ):
        assert f"  {edge}" in diagram
