"""Tries a drawn sample of the mutants of a room and prints the score of each measure, and who survived.

`make mutants ROOM=consensus SAMPLE=90 SIM=12` draws as many mutants of each group of operators (SAMPLE 0
tries all) and tries each with the unit tests, and with SIM seeds of simulation. Survivors that change nothing
anybody could see stand in equivalent.json, with the reason; they count in no score.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import json
import math
import operator
import os
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from mutation.candidates import GROUPS, Mutant, MutatedFile, of_room, sample
from mutation.chosen_tests import PRELOADED, Chosen, all_pass
from mutation.tests_of_lines import ALSO, ModuleTests, chosen, limit_s_of, measure
from mutation.trial import MutatedFinder, Outcome, Verdict, in_child, simulated

ROOT = Path(__file__).resolve().parents[1]
EQUIVALENT = Path(__file__).with_name("equivalent.json")
#: CPU time of one simulated seed that no sound run comes near.
SEED_CPU_S_MAX = 90.0
#: Half the width of the interval that holds the true score in 19 of 20 samples, in standard deviations.
DEVIATIONS = 1.96


class Tried(NamedTuple):
    """`unit` and `simulation` are None where that measure was not taken; a test that reaches nothing kills
    nothing."""

    mutant: Mutant
    unit: Verdict | None
    simulation: Verdict | None

    @property
    def survived(self) -> bool:
        return all(one in (None, Verdict.SURVIVED) for one in (self.unit, self.simulation))

    @property
    def either(self) -> Verdict | None:
        """None unless both measures were taken."""
        if self.unit is None or self.simulation is None:
            return None
        return Verdict.SURVIVED if self.survived else Verdict.KILLED


MEASURES: Mapping[str, Callable[[Tried], Verdict | None]] = {
    "unit tests": operator.attrgetter("unit"),
    "simulation": operator.attrgetter("simulation"),
    "either": operator.attrgetter("either"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="make mutants")
    parser.add_argument("--room", required=True, choices=sorted(ALSO))
    parser.add_argument("--sample", type=int, default=90, help="mutants drawn; 0: all")
    parser.add_argument("--seed", type=int, default=1, help="of the draw")
    parser.add_argument("--sim", type=int, default=0, help="simulated seeds for each mutant")
    parser.add_argument("--sim-seed", type=int, default=1, help="the first of them")
    parser.add_argument("--only", default="", help="only mutants whose name contains this")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="trials at a time")
    parser.add_argument("--no-unit", action="store_true", help="simulation alone")
    given = parser.parse_args(arguments)
    os.chdir(ROOT)
    sys.path.insert(0, str(ROOT))
    files = of_room(ROOT, given.room)
    equivalent = equivalents()
    for file in files:
        file.mutants = [one for one in file.mutants if one.name not in equivalent and given.only in one.name]
    with tempfile.TemporaryDirectory(prefix="mutants-") as work:
        tried = _all_tried(given, files, Path(work))
    print(report(given.room, tried, Counter(mutant.group for file in files for mutant in file.mutants)))
    return 0


def _all_tried(given: argparse.Namespace, files: Sequence[MutatedFile], work: Path) -> list[Tried]:
    total = sum(len(file.mutants) for file in files)
    pairs = sample(files, given.sample, given.seed)
    print(f"{given.room}: {len(pairs)} of {total} mutants in {len(files)} files", flush=True)
    for name in PRELOADED:
        importlib.import_module(name)
    drawn = frozenset(mutant.path for _, mutant in pairs)
    modules = None if given.no_unit else measure(ROOT, given.room, drawn.__contains__, work, given.jobs, _say)
    if modules is not None:
        _expect_sound(modules, pairs, work)
    tried = []
    with ThreadPoolExecutor(given.jobs) as pool:
        began = [pool.submit(_tried, given, file, mutant, modules, work) for file, mutant in pairs]
        for number, one in enumerate(began, 1):
            tried.append(one.result())
            _say(f"{number:5} {_line(tried[-1])}")
    return tried


def _expect_sound(
    modules: Sequence[ModuleTests], pairs: Sequence[tuple[MutatedFile, Mutant]], work: Path
) -> None:
    """RuntimeError when the first tests of these mutants fail by themselves, without the others."""
    first = [turns[0] for _, mutant in pairs if (turns := chosen(modules, mutant))]
    names = frozenset[str]().union(*(turn.tests for turn in first))
    paths = tuple(dict.fromkeys(path for turn in first for path in turn.modules))
    turns = [Chosen(paths, names)]
    outcome = in_child(lambda: all_pass(turns), work / "sound.log", limit_s_of(modules, turns))
    if outcome.verdict is not Verdict.SURVIVED:
        raise RuntimeError(f"the chosen tests fail on the sound code:\n{outcome.tail}")


def _say(text: str) -> None:
    print(text, flush=True)


def _tried(
    given: argparse.Namespace,
    file: MutatedFile,
    mutant: Mutant,
    modules: Sequence[ModuleTests] | None,
    work: Path,
) -> Tried:
    unit = None
    if modules is not None:
        turns = chosen(modules, mutant)
        limit_s = limit_s_of(modules, turns)
        unit = _attempt(file, mutant, work, limit_s, functools.partial(all_pass, turns)) if turns else None
    simulation = None
    if given.sim:
        seeds = range(given.sim_seed, given.sim_seed + given.sim)
        limit_s = SEED_CPU_S_MAX * given.sim
        simulation = _attempt(file, mutant, work, limit_s, functools.partial(simulated, seeds))
    return Tried(mutant, _verdict(unit, modules is not None), _verdict(simulation, bool(given.sim)))


def _attempt(
    file: MutatedFile, mutant: Mutant, work: Path, limit_s: float, run: Callable[[], bool]
) -> Outcome:
    text = file.source_of(mutant)

    def mutated() -> bool:
        sys.meta_path.insert(0, MutatedFinder(mutant.module, ROOT / mutant.path, text))
        return run()

    return in_child(mutated, work / f"trial.{threading.get_ident()}.log", limit_s)


def _verdict(outcome: Outcome | None, taken: bool) -> Verdict | None:
    if not taken:
        return None
    return outcome.verdict if outcome is not None else Verdict.SURVIVED


def _line(tried: Tried) -> str:
    words = [f"{name} {one.value}" for name, one in (("unit", tried.unit), ("sim", tried.simulation)) if one]
    mutant = tried.mutant
    return f"{', '.join(words)}: {mutant.path}:{mutant.line} {mutant.before} -> {mutant.after}"


def equivalents() -> dict[str, str]:
    """Names of mutants that change nothing anybody could see, with the reason."""
    return dict(json.loads(EQUIVALENT.read_text()))


def report(room: str, tried: Sequence[Tried], population: Mapping[str, int]) -> str:
    """Scores by group, then of the room: groups count there by how many mutants they have."""
    lines = [f"\n{room}: {len(tried)} of {sum(population.values())} mutants"]
    for name, verdict_of in MEASURES.items():
        taken = [(one.mutant.group, verdict_of(one)) for one in tried]
        shares = {}
        for group in GROUPS:
            verdicts = [verdict for of, verdict in taken if of == group and verdict is not None]
            if verdicts:
                shares[group] = _share(verdicts), len(verdicts)
                lines.append(f"  {name:11} {group:9} {shares[group][0]:4.0%} of {len(verdicts)}")
        if shares:
            lines.append(f"  {name:11} {'all':9} {_weighted(shares, population)}")
    survivors = [one.mutant for one in tried if one.survived]
    lines.append(f"  survivors: {len(survivors)}")
    lines.extend(f"    {one.path}:{one.line} {one.name.partition('::')[2]}" for one in survivors)
    return "\n".join(lines)


def _share(verdicts: Sequence[Verdict]) -> float:
    """That did not survive."""
    return sum(one is not Verdict.SURVIVED for one in verdicts) / len(verdicts)


def _weighted(shares: Mapping[str, tuple[float, int]], population: Mapping[str, int]) -> str:
    """The score of the room, and the half width of the interval that holds it in 19 of 20 draws."""
    whole = sum(population[group] for group in shares)
    weights = {group: population[group] / whole for group in shares}
    score = sum(weights[group] * share for group, (share, _) in shares.items())
    variance = sum(
        weights[group] ** 2 * share * (1 - share) / count for group, (share, count) in shares.items()
    )
    return f"{score:4.0%} (+- {DEVIATIONS * math.sqrt(variance):.0%})"


if __name__ == "__main__":
    sys.exit(main())
