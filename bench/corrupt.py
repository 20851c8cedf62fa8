"""`make corrupt`: damages every file of a node's data directory in turn, and counts what a start makes of it.

A small cluster writes data of every kind; one node's directory is kept twice, as it is after a stop in good
order and after a kill. Each case copies one of them, flips one bit of one file, cuts the file short, empties
or removes it, and opens the copy by the node's own start-up path with its real store, in a process of its
own; then everything is read back and compared. A sample is started as the third node of a running cluster.

A silent loss is a start that says nothing and then has less than before, or something else. Exit code 1 when
there is one, or when a start ends without naming an error.
Usage: python bench/corrupt.py [--cases N] [--real N] [--seed N] [--only TEXT] [--planted].
"""

from __future__ import annotations

import argparse
import collections
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path

from corrupt_cases import CUT, EMPTIED, FLIPPED, REMOVED, Case, cases_of, kind_of
from corrupt_cluster import Template, made_templates, real_cases
from corrupt_start import Opener, Result

OUTCOMES = ("whole", "refused", "refused, other file named", "damaged range", "SILENT", "ENDED")
BAD = ("SILENT", "ENDED")


def main() -> int:
    arguments = _arguments()
    began_s = time.monotonic()
    home = Path(tempfile.mkdtemp(prefix="lockstep-corrupt-"))
    try:
        templates = made_templates(home)
        print(f"{time.monotonic() - began_s:.0f} s: {_described(templates)}", flush=True)
        counts: collections.Counter[tuple[str, str, str, str]] = collections.Counter()
        bad: list[tuple[Case, Result]] = []
        try:
            for case, result in _outcomes(arguments, templates, home):
                counts[case.template, kind_of(case.path), case.harm, result.outcome] += 1
                if result.outcome in BAD:
                    bad.append((case, result))
        except KeyboardInterrupt:
            print("interrupted: what was found so far", flush=True)
        _print_table(counts)
        for case, result in bad[:40]:
            print(f"{result.outcome}: {case.described()}: {result.said}")
        total = sum(counts.values())
        print(f"{total} cases in {time.monotonic() - began_s:.0f} s, {len(bad)} silent losses or faults")
        return 1 if bad or not total else 0
    finally:
        shutil.rmtree(home, ignore_errors=True)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make corrupt", description="Damage every file in turn.")
    parser.add_argument("--cases", type=int, default=10_500, help="in-process cases, about")
    parser.add_argument("--real", type=int, default=24, help="cases with real processes at RF 3")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="only files whose path contains this")
    parser.add_argument("--planted", action="store_true", help="take damage for an end: losses must be found")
    return parser.parse_args()


def _outcomes(arguments: argparse.Namespace, templates: list[Template], home: Path):  # type: ignore[no-untyped-def]
    chance = random.Random(arguments.seed)
    opener = Opener(home, planted=arguments.planted)
    cases: list[Case] = []
    for template in templates:
        found = cases_of(template.name, template.directory, arguments.cases // len(templates), chance)
        cases.extend(case for case in found if arguments.only in case.path)
    try:
        for template in templates:
            opener.learn(template.name, template.directory)
        for number, case in enumerate(cases, start=1):
            yield case, opener.tried(case)
            if not number % 1000:
                print(f"  {number} of {len(cases)} cases", flush=True)
    finally:
        opener.close()
    if arguments.real and not arguments.planted:
        yield from real_cases(home, arguments.real, chance)


def _described(templates: list[Template]) -> str:
    sizes = [
        f"{template.name}: {sum(1 for path in template.directory.rglob('*') if path.is_file())} files"
        for template in templates
    ]
    return "directories made, " + ", ".join(sizes)


def _print_table(counts: collections.Counter[tuple[str, str, str, str]]) -> None:
    rows = sorted({key[:3] for key in counts}, key=lambda row: (row[0], row[1], _HARMS.index(row[2])))
    widths = [max(len(row[at]) for row in rows) if rows else 0 for at in range(3)]
    heads = "  ".join(f"{outcome:>10}" for outcome in OUTCOMES)
    print(f"{'':{sum(widths) + 4}}  {heads}")
    for row in rows:
        title = "  ".join(f"{text:{width}}" for text, width in zip(row, widths, strict=True))
        numbers = "  ".join(f"{counts[(*row, outcome)]:>{max(10, len(outcome))}}" for outcome in OUTCOMES)
        print(f"{title}  {numbers}")


_HARMS = (FLIPPED, CUT, EMPTIED, REMOVED)

if __name__ == "__main__":
    sys.exit(main())
