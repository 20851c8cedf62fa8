"""Owns what a run leaves behind: the table on the terminal, `results-PART.json`, the reference page."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from conformance.suite_run import FileResult, Outcome

_TELLING_MAX: Final = 150
_ERROR_LINE: Final = re.compile(
    r"^(?:E\s+)?((?:[\w.]+(?:Error|Exception|Request|Unavailable|Timeout|Failure|Found))\b.*)"
)


def totals(results: Sequence[FileResult]) -> dict[str, int]:
    """Counts over all files. `of_implemented` are tests that need nothing which is not built."""
    failed = failures(results)
    passed = sum(result.count("passed") for result in results)
    missing = sum(one.missing for one in failed)
    return {
        "collected": sum(len(result.outcomes) for result in results),
        "passed": passed,
        "failed": len(failed),
        "skipped": sum(result.count("skipped") for result in results),
        "failed_for_missing_parts": missing,
        "of_implemented": passed + len(failed) - missing,
        "uncollected_files": sum(bool(result.uncollected) for result in results),
        "nodes_left_down": sum(len(result.nodes_left_down) for result in results),
    }


def failures(results: Iterable[FileResult]) -> list[Outcome]:
    return [one for result in results for one in result.outcomes if one.outcome == "failed"]


def by_reason(results: Iterable[FileResult]) -> list[tuple[str, bool, list[Outcome]]]:
    """(reason, missing, tests), missing parts last, frequent ones first."""
    groups: dict[tuple[str, bool], list[Outcome]] = {}
    for one in failures(results):
        groups.setdefault((one.reason, one.missing), []).append(one)
    ordered = sorted(groups.items(), key=lambda group: (group[0][1], -len(group[1]), group[0][0]))
    return [(reason, missing, tests) for (reason, missing), tests in ordered]


def telling_line(text: str) -> str:
    """The line of a failure that says most: the last error named in it."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    named = [match.group(1) for line in lines if (match := _ERROR_LINE.match(line))]
    errors = [line.removeprefix("E").strip() for line in lines if line.startswith("E ")]
    line = (named or errors or lines or [""])[-1]
    return line if len(line) <= _TELLING_MAX else f"{line[: _TELLING_MAX - 1]}…"


def table(results: Sequence[FileResult]) -> str:
    width = max([len(result.file) for result in results] + [4])
    lines = [f"{'file':{width}}  passed  failed  skipped"]
    for result in results:
        counts = f"{result.count('passed'):6}  {result.count('failed'):6}  {result.count('skipped'):7}"
        notes = "  NOT COLLECTED" if result.uncollected else ""
        notes += f"  nodes left down: {', '.join(result.nodes_left_down)}" if result.nodes_left_down else ""
        lines.append(f"{result.file:{width}}  {counts}{notes}")
    sums = totals(results)
    lines.append(f"{'total':{width}}  {sums['passed']:6}  {sums['failed']:6}  {sums['skipped']:7}")
    lines.append("")
    for reason, missing, tests in by_reason(results):
        lines.append(f"{len(tests):5}  {'missing: ' if missing else ''}{reason}")
    lines.append("")
    lines.append(f"{sums['passed']} of {sums['of_implemented']} tests of what is implemented pass")
    return "\n".join(lines)


def as_json(results: Sequence[FileResult], setting: dict[str, Any]) -> dict[str, Any]:
    return {
        "setting": setting,
        "totals": totals(results),
        "reasons": {reason: len(tests) for reason, _, tests in by_reason(results)},
        "files": [
            {
                "file": result.file,
                **{word: result.count(word) for word in ("passed", "failed", "skipped")},
                "uncollected": result.uncollected,
                "nodes_left_down": list(result.nodes_left_down),
            }
            for result in results
        ],
        "failures": [
            {"test": one.test, "reason": one.reason, "missing": one.missing, "text": telling_line(one.text)}
            for one in failures(results)
        ],
    }


def write_json(path: Path, results: Sequence[FileResult], setting: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(as_json(results, setting), indent=1) + "\n")


def page(results: Sequence[FileResult], setting: dict[str, Any]) -> str:
    """The reference page, as Markdown."""
    sums = totals(results)
    lines = [
        "# Conformance",
        "",
        "What the integration tests of the Apache Cassandra Python driver find when they run, unchanged,",
        f"against a local cluster of {setting['nodes']} nodes."
        " `make conformance SUITE=path/to/checkout ARGS=--write-docs`"
        " makes this page.",
        "",
        f"Driver {setting['driver']}, protocol v{setting['protocol']},"
        f" `tests/{setting['folder'].removeprefix('tests/')}`.",
        "",
        "| collected | passed | failed | skipped | passed of what is implemented |",
        "| --- | --- | --- | --- | --- |",
        f"| {sums['collected']} | {sums['passed']} | {sums['failed']} | {sums['skipped']} |"
        f" {sums['passed']} of {sums['of_implemented']} |",
        "",
        "The suite itself skips tests that need another product or version.",
        "",
        "## By file",
        "",
        "| file | passed | failed | skipped |",
        "| --- | --- | --- | --- |",
    ]
    for result in results:
        name = result.file.removeprefix(setting["folder"]).lstrip("/")
        counts = " | ".join(str(result.count(word)) for word in ("passed", "failed", "skipped"))
        lines.append(f"| {name} | {counts} |")
    lines += ["", "## Failing tests by reason"]
    for reason, missing, tests in by_reason(results):
        lines += ["", f"### {'Not built: ' if missing else ''}{reason} ({len(tests)})", ""]
        lines += [
            f"- `{_short(one.test, setting['folder'])}`: {_escaped(telling_line(one.text))}" for one in tests
        ]
    return "\n".join(lines) + "\n"


def _short(test: str, folder: str) -> str:
    return test.removeprefix(folder).lstrip("/")


def _escaped(text: str) -> str:
    return f"`` {text} ``" if "`" in text else f"`{text}`"
