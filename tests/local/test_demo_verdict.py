"""The verdict holds only when everything did, and both screens tell what happened."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from lockstep.local import demo
from lockstep.local.demo_messages import Counts, Report
from lockstep.local.demo_screen import (
    LineScreen,
    LiveScreen,
    NodeLine,
    Phase,
    PhaseState,
    View,
    node_lines,
    open_screen,
)
from lockstep.local.demo_spark import PipelineResult, SparkResult
from lockstep.local.demo_tour import Results
from lockstep.values.errors import LockstepError

KEYS = ("start", "load", "traffic", "grow", "spread", "replace", "shrink", "proof", "spark")


def good() -> tuple[Results, View]:
    counts = Counts(
        loaded=100,
        writes_attempted=51,
        writes_acknowledged=50,
        reads=40,
        raw_errors=3,
        read_back=150,
        errors={"raw: ConnectionShutdown": 3},
        examples={"raw: ConnectionShutdown": "n1 is gone"},
    )
    results = Results(
        rows_given=100,
        counts=counts,
        logs_agree=True,
        logs_told="3 nodes at epoch 15",
        spark=SparkResult(
            loaded_rows=100,
            traffic_rows=51,
            repeated_rows=0,
            scan_s=0.5,
            total_s=9.0,
            pipeline=PipelineResult(100, 100, 0, 3, 0, 4.0),
        ),
    )
    phases = [Phase(key, key, PhaseState.DONE, "told", 1.0, 2.5, 4, 9) for key in KEYS]
    return results, View(title="demo", begin_s=0.0, phases=phases, notes=["input: 100 rows"])


def failing(results: Results, view: View) -> list[str]:
    made = demo.checks(results, view, with_spark=True)
    assert demo.all_held(made) == (not any(check.held is False for check in made))
    return [check.name for check in made if check.held is False]


def test_a_good_tour_holds_and_says_its_numbers() -> None:
    results, view = good()
    assert failing(results, view) == []
    made = {check.name: check.value for check in demo.checks(results, view, with_spark=True)}
    assert made["grown from 3 to 5 nodes"] == "1.5 s, epochs 5 to 9"
    assert made["acknowledged rows read back"] == "150 of 150"
    assert made["raw errors that the driver retried"] == "3"


def _jobs(**changed: int) -> Callable[[Results, View], None]:
    return _spark(pipeline=msgspec.structs.replace(PipelineResult(100, 100, 0, 3, 0, 4.0), **changed))


def _spark(**changed: Any) -> Callable[[Results, View], None]:
    def change(results: Results, _view: View) -> None:
        assert results.spark is not None
        results.spark = msgspec.structs.replace(results.spark, **changed)

    return change


def _count(**changed: int) -> Callable[[Results, View], None]:
    return lambda results, _view: [setattr(results.counts, *item) for item in changed.items()] and None


def _state(key: str, state: PhaseState) -> Callable[[Results, View], None]:
    return lambda _results, view: setattr(view.phase(key), "state", state)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (_count(lost=1), "acknowledged rows lost"),
        (_count(read_back=149), "acknowledged rows read back"),
        (_count(wrong_reads=1), "reads under topology changes, all right"),
        (_count(reads=0), "reads under topology changes, all right"),
        (_count(client_errors=1), "client errors after the driver's retries"),
        (_state("grow", PhaseState.FAILED), "grown from 3 to 5 nodes"),
        (_state("spread", PhaseState.FAILED), "tablets of the hot table"),
        (_state("replace", PhaseState.SKIPPED), "the metadata leader was killed and replaced"),
        (
            _state("shrink", PhaseState.FAILED),
            "shrunk back to 3, each time by the metadata leader",
        ),
        (_state("proof", PhaseState.FAILED), "acknowledged rows lost"),
        (lambda results, _view: setattr(results, "logs_agree", False), "metadata log equal on all nodes"),
        (lambda results, _view: setattr(results, "spark", None), "Spark read both tables"),
        (_spark(loaded_rows=99), "Spark count of the loaded table"),
        (_spark(loaded_rows=101), "Spark count of the loaded table"),
        (_spark(traffic_rows=49), "Spark count of the traffic table"),
        (_spark(traffic_rows=52), "Spark count of the traffic table"),
        (_spark(repeated_rows=1), "rows that Spark saw twice"),
        (_spark(pipeline=None), "jobs over the loaded table"),
        (_jobs(exported=99), "rows exported, and loaded from there into another table"),
        (_jobs(loaded_again=99), "rows exported, and loaded from there into another table"),
        (_jobs(differing=1), "rows that differ between the two"),
        (_jobs(replicas_differing=1), "elements that replicas hold differently"),
        (_jobs(audited_replicas=1), "elements that replicas hold differently"),
        (lambda results, _view: setattr(results, "rows_given", 101), "rows loaded"),
        (lambda results, _view: setattr(results, "failed", LockstepError("x")), "the tour ran to its end"),
    ],
)
def test_each_check_bites(change: Callable[[Results, View], None], named: str) -> None:
    results, view = good()
    change(results, view)
    assert failing(results, view) == [named]


def test_spark_counts_what_was_not_written_to_the_hot_table() -> None:
    results, view = good()
    _count(writes_acknowledged=90, writes_attempted=91, hot_acknowledged=40, hot_attempted=40)(results, view)
    _count(read_back=190)(results, view)
    assert failing(results, view) == []
    _count(hot_acknowledged=38, hot_attempted=38)(results, view)
    assert failing(results, view) == ["Spark count of the traffic table"]


def test_a_tour_without_acknowledged_writes_proves_nothing() -> None:
    results, view = good()
    _count(writes_acknowledged=0, writes_attempted=0, read_back=100)(results, view)
    _spark(traffic_rows=0)(results, view)
    assert failing(results, view) == ["writes acknowledged under topology changes"]


def test_the_verdict_is_shown_without_a_terminal_and_kept_as_json() -> None:
    results, view = good()
    results.counts.lost = 2
    made = demo.checks(results, view, with_spark=True)
    stream = io.StringIO()
    demo.show(made, results, 61.4, stream)
    text = stream.getvalue()
    assert "FAIL  acknowledged rows lost" in text
    assert "1 checks FAILED, after 61 s" in text
    assert "3  raw: ConnectionShutdown: n1 is gone" in text
    kept = json.loads(json.dumps(demo.verdict_document(made, results, view)))
    assert (kept["schema"], kept["held"]) == ("demo-verdict/1", False)
    assert kept["counts"]["lost"] == 2


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def picture_of(view: View) -> str:
    stream = Terminal()
    screen = open_screen(stream)
    assert isinstance(screen, LiveScreen)
    screen.update(view)
    drawn = stream.getvalue()
    screen.close(view)
    return drawn


def running_view() -> View:
    _, view = good()
    view.phase("proof").state = PhaseState.RUNNING
    view.phase("spark").state = PhaseState.WAITING
    view.nodes = [NodeLine("n1", "127.0.0.1", "running", "normal", 9, 0.25, "leader")]
    view.report = Report(1.0, Counts(), 512.0, 1.5, 9.5, done=40, total=150)
    return view


def test_the_live_picture_shows_phases_nodes_and_traffic(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.delenv("NO_COLOR", raising=False)
    drawn = picture_of(running_view())
    for said in ("✓", "input: 100 rows", "127.0.0.1", "25.0%", "leader", "40 of 150 rows", "p99 9.5 ms"):
        assert said in drawn
    assert "\x1b[32m" in drawn
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[32m" not in picture_of(running_view())


def test_lines_tell_each_phase_once_when_it_begins_and_ends() -> None:
    stream = io.StringIO()
    screen = open_screen(stream)
    assert isinstance(screen, LineScreen)
    view = running_view()
    screen.update(view)
    screen.update(view)
    view.phase("proof").state = PhaseState.FAILED
    screen.close(view)
    lines = [line.split(" s  ", 1)[1] for line in stream.getvalue().splitlines()]
    assert lines[0] == "input: 100 rows"
    assert lines.count("proof …") == 1
    assert lines.count("✗ proof: told (1.5 s)") == 1
    assert lines.count("✓ grow: told (1.5 s)") == 1


def test_nodes_of_a_status_are_named_as_the_local_cluster_names_them() -> None:
    status = {
        "leader": 2,
        "nodes": [
            {"id": 1, "address": "a", "state": "normal", "voter": True, "epoch": 7, "owns": 0.5},
            {"id": 2, "address": "b", "state": "normal", "voter": True, "epoch": None, "owns": None},
            {"id": 3, "address": "c", "state": "joining", "voter": False},
        ],
    }
    lines = node_lines(status, {"a": ("n1", "running"), "b": ("n2", "stopped")})
    assert [(line.name, line.process, line.role, line.epoch) for line in lines] == [
        ("n1", "running", "voter", 7),
        ("n2", "stopped", "leader", 0),
        ("c", "?", "", 0),
    ]


def test_nothing_of_an_earlier_run_is_left_in_a_report(tmp_path: Path) -> None:
    """An export that stood there ended the next tour: it is never written over."""
    for name in demo.OUTPUTS:
        (tmp_path / name).mkdir()
    (tmp_path / "of somebody else").touch()
    demo._remove_earlier_outputs(tmp_path)
    assert "export" in demo.OUTPUTS and [one.name for one in tmp_path.iterdir()] == ["of somebody else"]
