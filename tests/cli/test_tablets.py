"""Moves of tablets as the command follows them, against an admin API of canned answers."""

from __future__ import annotations

from typing import Any

from click.testing import CliRunner, Result

from lockstep.cli.main import root
from tests.cli.fake_admin import FakeAdmin

MAP = "GET /v1/tablets?keyspace=ks&table=t"


def on(*nodes: int) -> list[dict[str, int]]:
    return [{"node": node} for node in nodes]


def at(epoch: int, *nodes: int, stage: str = "", next_: tuple[int, ...] = ()) -> dict[str, Any]:
    tablet = {"number": 0, "start": -9, "end": 9, "replicas": on(*nodes), "stage": stage, "next": on(*next_)}
    return {"schema": "tablet-map/1", "epoch": epoch, "tablets": [tablet]}


def moved(*told: dict[str, Any]) -> Result:
    """Tablet 0 is moved from 1 2 3 to 4 2 3."""
    began = {"schema": "tablet-move/1", "keyspace": "ks", "table": "t", "tablet": 0, "start": -9, "end": 9,
             "kind": "migration", "replicas": on(1, 2, 3), "next": on(4, 2, 3), "epoch": 7}  # fmt: skip
    with FakeAdmin({"POST /v1/tablets/move": began, MAP: list(told)}) as fake:
        arguments = ("tablets", "move", "ks.t", "0", "--from", "1", "--to", "4", "--host", fake.host)
        return CliRunner().invoke(root, arguments)


def test_a_tablet_that_arrives_is_there() -> None:
    result = moved(at(6, 1, 2, 3), at(7, 1, 2, 3, stage="streaming", next_=(4, 2, 3)), at(9, 4, 2, 3))
    assert result.exit_code == 0, result.output
    assert "tablet 0 of ks.t is on 4 2 3" in result.stdout


def test_one_that_is_moved_on_at_once_was_there() -> None:
    first = at(7, 1, 2, 3, stage="streaming", next_=(4, 2, 3))
    last = at(8, 4, 2, 3, stage="cleanup", next_=(4, 2, 3))
    onward = at(9, 4, 2, 3, stage="streaming", next_=(4, 1, 3))
    result = moved(first, last, onward, at(12, 4, 1, 3))
    assert result.exit_code == 0, result.output
    assert "tablet 0 of ks.t is on 4 2 3" in result.stdout


def test_one_that_goes_back_is_told_of_once_it_is_back() -> None:
    result = moved(
        at(7, 1, 2, 3, stage="streaming", next_=(4, 2, 3)),
        at(8, 1, 2, 3, stage="cleanup_target", next_=(1, 2, 3)),
        at(9, 1, 2, 3),
    )
    assert result.exit_code == 1
    assert "went back: it is on 1 2 3" in result.stderr
    assert "stage: cleanup_target" in result.stderr
