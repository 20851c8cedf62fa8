"""The runner of foreign suites: outcomes from records, reasons of failures, counts, the page."""

from __future__ import annotations

from typing import Any

import pytest

from conformance import report
from conformance.reasons import DEFECT, JAVA, judge
from conformance.suite_run import FileResult, Outcome, read_record

SETTING = {"folder": "tests/standard", "nodes": 3, "driver": "1.2.3", "protocol": 5}


def finished(test: str, outcome: str, phase: str = "call", text: str = "") -> dict[str, Any]:
    return {
        "event": "finished",
        "test": test,
        "phase": phase,
        "outcome": outcome,
        "duration_s": 0.5,
        "text": text,
    }


def collected(*tests: str) -> list[dict[str, Any]]:
    return [{"event": "collected", "test": test} for test in tests]


def test_a_failure_after_the_test_itself_makes_it_failed() -> None:
    lines = [*collected("a", "b"), finished("a", "passed"), finished("a", "failed", "teardown", "boom")]
    outcomes, _ = read_record([*lines, finished("b", "skipped", "setup", "why")], "")
    assert [(one.test, one.outcome) for one in outcomes] == [("a", "failed"), ("b", "skipped")]


def test_a_test_that_never_finished_failed_for_what_ended_the_run() -> None:
    lines = [*collected("a", "b"), finished("a", "passed"), {"event": "started", "test": "b"}]
    outcomes, _ = read_record(lines, "the file was ended after 5 s")
    assert [(one.outcome, one.text) for one in outcomes] == [
        ("passed", ""),
        ("failed", "the file was ended after 5 s"),
    ]


def test_a_file_that_cannot_be_imported_says_why() -> None:
    assert read_record([{"event": "uncollected", "test": "f", "text": "no module"}], "") == ((), "no module")


@pytest.mark.parametrize(
    ("test", "text", "reason"),
    [
        (
            "t",
            'E  code=2200 message="CREATE TRIGGER statements are not supported"',
            "statements that are not supported",
        ),
        ("t", "code=0000 [Server error] message=x is not supported", "the server failed"),
        ("x::SingleInterfaceTest::test_a", "NoHostAvailable", "a cluster whose nodes share an address"),
        ("x::QueryTests::test_a", "AssertionError: 1 != 2", DEFECT),
    ],
)
def test_the_reason_of_a_failure(test: str, text: str, reason: str) -> None:
    assert judge(test, text) == reason


def results() -> list[FileResult]:
    outcomes = (
        Outcome("tests/standard/f.py::a", "passed", 0.1, ""),
        Outcome("tests/standard/f.py::b", "failed", 0.1, "E   AssertionError: 1 != 2", DEFECT),
        Outcome("tests/standard/f.py::c", "failed", 0.1, "E   KeyError: 'x'", JAVA),
        Outcome("tests/standard/f.py::d", "skipped", 0.0, "Skipped: not here"),
    )
    return [FileResult("tests/standard/f.py", outcomes, nodes_left_down=("n2",))]


def test_every_test_that_the_suite_runs_counts_whatever_its_reason() -> None:
    sums = report.totals(results())
    assert (sums["collected"], sums["skipped"], sums["run"], sums["passed"], sums["failed"]) == (
        4,
        1,
        3,
        1,
        2,
    )
    assert report.share(sums) == "33.3 %"
    assert sums["nodes_left_down"] == 1
    assert "nodes left down: n2" in report.table(results())


def test_the_page_lists_each_failing_test_once_under_its_reason() -> None:
    text = report.page([report.as_json(results(), SETTING)])
    assert "| `tests/standard` | 4 | 1 | 3 | 1 | 2 | 33.3 % |" in text
    assert text.index(f"Failing: {DEFECT} (1)") < text.index("- `f.py::b`: `AssertionError: 1 != 2`")
    assert text.index(f"Failing: {JAVA} (1)") < text.index("- `f.py::c`: `KeyError: 'x'`")
    assert text.count("f.py::a") == 0
    assert "| not here | 1 |" in text


def test_the_telling_line_is_the_last_error_named() -> None:
    text = "f.py:3: in f\nE   cassandra.InvalidRequest: one\nf.py:9: in g\nE   TypeError: two\n"
    assert report.telling_line(text) == "TypeError: two"
