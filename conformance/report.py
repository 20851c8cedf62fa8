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
    """Counts over all files. Tests that the suite itself skips do not apply; all others are `run`."""
    failed = len(failures(results))
    passed = sum(result.count("passed") for result in results)
    return {
        "collected": sum(len(result.outcomes) for result in results),
        "skipped": sum(result.count("skipped") for result in results),
        "run": passed + failed,
        "passed": passed,
        "failed": failed,
        "uncollected_files": sum(bool(result.uncollected) for result in results),
        "nodes_left_down": sum(len(result.nodes_left_down) for result in results),
    }


def share(sums: dict[str, int]) -> str:
    """Per cent of the tests run that passed, rounded down."""
    return f"{sums['passed'] * 1000 // max(sums['run'], 1) / 10:.1f} %"


def failures(results: Iterable[FileResult]) -> list[Outcome]:
    return [one for result in results for one in result.outcomes if one.outcome == "failed"]


def by_reason(results: Iterable[FileResult]) -> list[tuple[str, list[Outcome]]]:
    """(reason, tests that failed), frequent ones first."""
    groups: dict[str, list[Outcome]] = {}
    for one in failures(results):
        groups.setdefault(one.reason, []).append(one)
    return sorted(groups.items(), key=lambda group: (-len(group[1]), group[0]))


def skips(results: Iterable[FileResult]) -> list[tuple[str, int]]:
    """(why the suite skips, number of tests), frequent ones first."""
    found: dict[str, int] = {}
    for result in results:
        for one in result.outcomes:
            if one.outcome == "skipped":
                why = one.text.removeprefix("Skipped").removeprefix(": ").partition("\n")[0]
                found[why or "no reason given"] = found.get(why or "no reason given", 0) + 1
    return sorted(found.items(), key=lambda entry: (-entry[1], entry[0]))


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
    lines += [f"{len(tests):5}  {reason}" for reason, tests in by_reason(results)]
    lines += ["", f"{sums['passed']} of {sums['run']} tests run pass: {share(sums)}"]
    return "\n".join(lines)


def as_json(results: Sequence[FileResult], setting: dict[str, Any]) -> dict[str, Any]:
    return {
        "setting": setting,
        "totals": totals(results),
        "reasons": {reason: len(tests) for reason, tests in by_reason(results)},
        "skips": dict(skips(results)),
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
            {"test": one.test, "reason": one.reason, "text": telling_line(one.text)}
            for one in failures(results)
        ],
    }


def write_json(path: Path, results: Sequence[FileResult], setting: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(as_json(results, setting), indent=1) + "\n")


def page(parts: Sequence[dict[str, Any]]) -> str:
    """The reference page, as Markdown, of what `as_json` told of each part."""
    setting = parts[0]["setting"]
    lines = [
        "# Conformance",
        "",
        "What the integration tests of the Apache Cassandra Python driver find when they run, unchanged,",
        f"against a local cluster of {setting['nodes']} nodes: driver {setting['driver']},"
        f" protocol v{setting['protocol']}.",
        "`make conformance SUITE=path/to/checkout ARGS=--write-docs` makes this page, a part of the suite",
        "at a time (`--part`).",
        "",
        "| part | collected | skipped | run | passed | failed | passed of those run |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for part in parts:
        sums = part["totals"]
        words = ("collected", "skipped", "run", "passed", "failed")
        counts = " | ".join(str(sums[word]) for word in words)
        lines.append(f"| `{part['setting']['folder']}` | {counts} | {share(sums)} |")
    lines += ["", "Skipped are tests that the suite itself does not run here; every other test counts."]
    for part in parts:
        lines += part_lines(part)
    return "\n".join(lines) + "\n"


def part_lines(part: dict[str, Any]) -> list[str]:
    """The section of one part: its files, why tests are skipped, and every failing test."""
    folder = part["setting"]["folder"]
    lines = ["", f"## {folder.rpartition('/')[2]}", "", "| file | passed | failed | skipped |"]
    lines.append("| --- | --- | --- | --- |")
    for file in part["files"]:
        counts = " | ".join(str(file[word]) for word in ("passed", "failed", "skipped"))
        lines.append(f"| {_short(file['file'], folder)} | {counts} |")
    lines += ["", "| why the suite skips | tests |", "| --- | --- |"]
    lines += [f"| {why} | {number} |" for why, number in part["skips"].items()]
    for reason, number in part["reasons"].items():
        lines += ["", f"### Failing: {reason} ({number})", ""]
        lines += [
            f"- `{_short(one['test'], folder)}`: {_escaped(one['text'])}"
            for one in part["failures"]
            if one["reason"] == reason
        ]
    return lines


def _short(test: str, folder: str) -> str:
    return test.removeprefix(folder).lstrip("/")


def _escaped(text: str) -> str:
    return f"`` {text} ``" if "`" in text else f"`{text}`"
