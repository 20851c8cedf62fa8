"""Owns `lockstep sim`: run seeds of the simulation, and run one failure again."""

from __future__ import annotations

import time
from pathlib import Path
from types import ModuleType
from typing import Final

import click

from lockstep.cli.shared import render
from lockstep.values.errors import ConfigurationError


class Ledger:
    """Names of what was passed, noted in a file at once, so that a long run that was ended goes on later.

    Invariant: it holds for one seed, which its first line names."""

    def __init__(self, path: Path, seed: int) -> None:
        self._path = path
        head = f"# survived with seed {seed}"
        if not path.exists():
            path.write_text(f"{head}\n")
        first, *names = path.read_text().splitlines()
        if first != head:
            raise ConfigurationError(f"{path} is not of seed {seed}", hint="another --resume FILE")
        self.names: Final = frozenset(names)

    def note(self, name: str) -> None:
        with self._path.open("a") as file:
            file.write(f"{name}\n")


@click.group()
def sim() -> None:
    """A whole cluster in one process, on simulated time, network and disks."""


@sim.command()
@click.option("--seed", default=1, show_default=True, help="First seed.")
@click.option("--seeds", default=1, show_default=True, help="How many seeds, one after another.")
@click.option("--scenario", default="", help="Only this scenario; all of them by default.")
@render.output
def run(seed: int, seeds: int, scenario: str, output: str) -> int:
    """Run seeds; a failure prints the command that repeats it exactly.

    Interrupted (Ctrl-C, SIGTERM), it tells how far it came and the figures so far, and exits with 130.
    """
    shown = (lambda figures: render.json_out(figures, "sim-run/1")) if output == "json" else None
    return int(_runner().run(seed, seeds, scenario, shown=shown))


@sim.command()
@click.argument("what", metavar="SEED")
@click.option("--scenario", default="swarm", show_default=True, help="The scenario it failed in.")
@click.option("--trace", is_flag=True, help="Print who did what when.")
@click.option("--last", default=0, help="Only the last lines of the trace.")
def replay(what: str, scenario: str, trace: bool, last: int) -> int:
    """Run one seed again, exactly as it was."""
    return int(_runner().replay(what, scenario, trace=trace, last=last))


@sim.command()
@click.option("--seeds", default=500, show_default=True, help="Seeds tried for each bug.")
@click.option("--only", default="", help="Only this bug.")
def planted(seeds: int, only: str) -> int:
    """Look for bugs planted on purpose: what the checkers cannot find, they do not rule out."""
    return int(_runner().planted(seeds, only))


@sim.command()
@click.option("--seed", default=1, show_default=True, help="First seed.")
@click.option("--seeds", default=1, show_default=True, help="Runs of each layout.")
@click.option("--plant", default="sound", show_default=True, help="Plant this flaw; it must be found.")
def quorums(seed: int, seeds: int, plant: str) -> int:
    """Compare every read quorum with every write quorum over the placements of whole runs."""
    from lockstep.sim.drills import quorum_report

    began = time.monotonic()
    verdict = quorum_report.check(seed, seeds, plant)
    click.echo(quorum_report.text_of(verdict, time.monotonic() - began))
    return 0 if verdict.holds else 1


@sim.command()
@click.option("--seed", default=1, show_default=True, help="First seed.")
@click.option("--seeds", default=1, show_default=True, help="Runs of each setting.")
@click.option("--nodes", default=12, show_default=True, help="Grow to so many nodes.")
@click.option("--operations", default=12, show_default=True, help="Operations of each run.")
@click.option("--factor", default=(2, 3, 5), show_default=True, multiple=True, type=int)
@click.option("--dcs", default=(0, 1, 3), show_default=True, multiple=True, type=int, help="0: Simple.")
@click.option("--tokens", default=(1, 16), show_default=True, multiple=True, type=int, help="Of each node.")
@click.option("--concurrency", default=(1, 3, 5), show_default=True, multiple=True, type=int)
@click.option("--plant", default="sound", show_default=True, help="Plant this flaw; it must be found.")
def placements(
    seed: int,
    seeds: int,
    nodes: int,
    operations: int,
    factor: tuple[int, ...],
    dcs: tuple[int, ...],
    tokens: tuple[int, ...],
    concurrency: tuple[int, ...],
    plant: str,
) -> int:
    """Compare every step of random topology operations with an obvious model of who owns what."""
    from lockstep.sim.drills import placement_report

    began = time.monotonic()
    chosen = placement_report.settings(nodes, operations, factor, dcs, tokens, concurrency)
    verdict = placement_report.check(seed, seeds, chosen, plant)
    click.echo(placement_report.text_of(verdict, time.monotonic() - began))
    return 0 if verdict.holds else 1


@sim.command()
@click.option("--nodes", default=1000, show_default=True, help="Nodes that follow the log.")
@click.option("--commits", default=200, show_default=True, help="Entries that the leader commits.")
@click.option("--loss", default=0.05, show_default=True, help="Part of the frames that are lost.")
@click.option("--seed", default=1, show_default=True)
def dissemination(nodes: int, commits: int, loss: float, seed: int) -> int:
    """Let many nodes follow the metadata log, and count what that costs the leader."""
    from lockstep.sim.drills.dissemination import Dissemination, Setting

    outcome = Dissemination(Setting(nodes=nodes, commits=commits, loss=loss, seed=seed)).run()
    click.echo(outcome.text())
    return 0 if outcome.holds else 1


@sim.command()
@click.option("--seed", default=1, show_default=True, help="First seed.")
@click.option("--seeds", default=100, show_default=True, help="How many seeds, one after another.")
@click.option("--mode", type=click.Choice(["unanimous", "quorum"]), default="quorum", show_default=True)
@click.option("--careful", is_flag=True, help="Operators abort only what its initiator has not committed.")
@click.option("--plant", default="", help="Look for this planted bug, in its own mode, or for all of them.")
@click.option("--trace", is_flag=True, help="Print what happened; for one seed.")
def ring(seed: int, seeds: int, mode: str, careful: bool, plant: str, trace: bool) -> int:
    """Let members of a ring without a log agree under faults, and compare their rings at every step.

    Where all must accept, operators who are not careful break the ring, and that must be found.
    """
    from lockstep.ring.ring import Mode
    from lockstep.sim.ring import report
    from lockstep.sim.ring.harness import RingRun, Setting

    if plant:
        missed = 0
        for name in report.planted_bugs() if plant == "all" else [plant]:
            broken = report.found(name, seeds, seed)
            missed += broken is None
            where = f"found with seed {broken.setting.seed}: {broken.invariant}" if broken else "NOT FOUND"
            click.echo(f"{name}: {where}")
        return 1 if missed else 0
    setting = Setting(Mode(mode), seed, aborting=not careful)
    if trace:
        result = RingRun(setting).result()
        click.echo("\n".join((*result.story, result.violation or f"seed {seed} holds")))
        return 1 if result.violation else 0
    verdict = report.check(setting, seeds)
    click.echo(verdict.text())
    return 0 if verdict.holds else 1


@sim.command()
@click.option("--nodes", default=1000, show_default=True, help="Members of the ring.")
@click.option("--trials", default=10, show_default=True, help="Changes that are spread, of each case.")
@click.option("--seed", default=1, show_default=True)
def convergence(nodes: int, trials: int, seed: int) -> int:
    """Count the rounds in which a change of a ring without a log reaches all members, beside formulas."""
    from lockstep.sim.ring import convergence as tool

    if nodes < 4 or trials < 1:
        raise ConfigurationError("a case has 4 nodes and one trial at least")
    click.echo(tool.HEAD)
    missed = 0
    for case in tool.cases(nodes, trials, seed):
        outcome = tool.measure(case)
        missed += outcome.missed
        click.echo(outcome.text())
    click.echo(f"{missed} members were not reached")
    return 1 if missed else 0


@sim.command()
@click.option("--case", "only", default="", help="Only this case; all of them by default.")
@click.option("--verbose", is_flag=True, help="Print the transcript also of a case that holds.")
def coordinator(only: str, verbose: bool) -> int:
    """Play one real node among scripted peers that are behind, ahead, slow or silent."""
    from lockstep.sim.coordinator.script import cases, play, text_of

    known = cases()
    if only and only not in known:
        raise ConfigurationError(f"there is no case {only}", hint="lockstep sim coordinator names them all")
    failed = 0
    for name in [only] if only else known:
        verdict = play(known[name])
        failed += bool(verdict.problem)
        click.echo(text_of(verdict, verbose=verbose))
    click.echo(f"{1 if only else len(known)} cases, {failed} failed")
    return 1 if failed else 0


@sim.command()
@click.option("--only", default="", help="KIND/STAGE/POINT/VICTIM/FAULT, or the first parts of it; * is any.")
@click.option("--seed", default=1, show_default=True)
@click.option("--pairs", is_flag=True, help="So few cells that every pair of two values is in one of them.")
@click.option("--trace", is_flag=True, help="Print who did what when; for one cell.")
@click.option("--last", default=1_000_000, help="Only the last lines of the trace.")
def matrix(only: str, seed: int, pairs: bool, trace: bool, last: int) -> int:
    """Strike every operation at every step, with every victim and every fault."""
    from lockstep.sim.matrix import report

    if trace:
        result, story = report.told_story(only, seed, last)
        click.echo(story)
        click.echo(report.failure_text(result) if result.violation else f"{result.cell.name} holds")
        return 1 if result.violation else 0

    verdict = report.run_matrix(only, seed, pairs=pairs, told=click.echo)
    click.echo(report.text_of(verdict))
    return 1 if verdict.failed else 0


@sim.command()
@click.option("--only", default="", help="SCENARIO:PLACE:HIT, with * for any part.")
@click.option("--seed", default=1, show_default=True)
@click.option("--trace", is_flag=True, help="Print who did what when; for one cut, named whole.")
@click.option("--last", default=1_000_000, help="Only the last lines of the trace.")
@click.option("--sample", default=0, show_default=True, help="Only so many, drawn by the seed; 0: all.")
@click.option(
    "--resume",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Note what is survived in this file, and leave out what stands there.",
)
def cuts(only: str, seed: int, trace: bool, last: int, sample: int, resume: Path | None) -> int:
    """Cut a node's power after each durable step, before the one that follows it.

    Each step is struck in the first scenario that reaches it; a sample is drawn from all that do.
    """
    from lockstep.sim.matrix import cuts as tool

    if trace:
        result, story = tool.told_story(only, seed, last)
        click.echo(story)
        click.echo(tool.failure_text(result) if result.violation else f"{result.cut.name} is survived")
        return 1 if result.violation else 0
    ledger = Ledger(resume, seed) if resume else None
    results = []
    for one in tool.run_cuts(only, seed, sample, click.echo, ledger.names if ledger else ()):
        results.append(one)
        if ledger and not one.violation:
            ledger.note(one.cut.name)
    failed = sum(bool(result.violation) for result in results)
    labels = len({result.cut.label for result in results})
    before = f", {len(ledger.names)} survived before" if ledger else ""
    click.echo(f"cuts: {len(results)} at {labels} places, {failed} not survived{before}")
    return 1 if failed else 0


@sim.command()
@click.option("--seed", default=1, show_default=True, help="First seed of each scenario.")
@click.option("--seeds", default=0, help="Of each scenario; without it those of the nightly set.")
@click.option("--all", "all_of_them", is_flag=True, help="Print all branches that are not reached.")
@click.option(
    "--record", is_flag=True, help="Write the list anew: without what is reached, with what is tested."
)
@click.option(
    "--tests",
    type=click.Path(exists=True, dir_okay=False),
    help="What unit tests take, as `python -m mutation.branches FILE` writes it.",
)
@click.option(
    "--only", default="", help="Only parts of the set with such names, as 'metadata 1'; * is anything."
)
def reached(seed: int, seeds: int, all_of_them: bool, record: bool, tests: str | None, only: str) -> int:
    """Tell which branches of code that decides and replicates the nightly set does not reach.

    1 when some are not listed with a reason, when a list excuses what is reached, when tests do not take what
    they are said to, or when a part of the set fails. With --only, tell which listed ones these parts reach.
    Needs the development environment (coverage).
    """
    from lockstep.sim import reached as tool

    rooms, failed = tool.measure(seed, seeds or tool.NIGHTLY_SEEDS, click.echo, only or "*")
    if only:
        known = tool.known_blind()
        left = tool.without_reached(known, rooms)
        click.echo("\n".join(branch.text() for branch in known.lines if branch not in left.lines))
        click.echo(f"{len(known.lines) - len(left.lines)} of {len(known.lines)} listed branches are reached")
        if record:
            tool.record(left)
        return 1 if failed else 0
    verdict = tool.verdict_of(rooms, failed, tool.taken_by_tests(tests) if tests else None)
    click.echo(tool.text_of(verdict, all_of_them=all_of_them))
    if record:
        tool.record(tool.recorded(verdict))
        return 1 if verdict.failed or verdict.fresh else 0
    return 0 if verdict.holds else 1


@sim.command()
@click.option("--seed", default=1, show_default=True, help="First seed.")
@click.option("--seeds", default=1, show_default=True, help="How many seeds, one after another.")
@click.option("--statements", default=10_000, show_default=True, help="Of each seed.")
@click.option(
    "--nodes", default=1, show_default=True, help="With several, one at a time is killed or cut off."
)
@click.option("--tablets", is_flag=True, help="Spread the tables by tablets.")
@click.option("--table", default=-1, help="Only the script of this table.")
@click.option("--shrink", is_flag=True, help="Shorten what fails, and print it as CQL.")
@click.option("--planted", is_flag=True, help="Look for bugs planted on purpose.")
@click.option("--plant", default="", help="Plant this bug; it must be found.")
@click.option("--garbage", default=0, help="Instead so many mutated frames and statements.")
@click.option(
    "--long", "is_long", is_flag=True, help="Instead long statements: how long they keep a loop busy."
)
def fuzz(
    seed: int,
    seeds: int,
    statements: int,
    nodes: int,
    tablets: bool,
    table: int,
    shrink: bool,
    planted: bool,
    plant: str,
    garbage: int,
    is_long: bool,
) -> int:
    """Compare random statements on random tables with an obvious model of the language."""
    from lockstep.sim.fuzz import effort, report
    from lockstep.sim.fuzz import garbage as sender

    if planted:
        return 0 if report.planted(seed, seeds, plant, click.echo) else 1
    failed = 0
    for at in range(seed, seed + seeds):
        began = time.monotonic()
        if garbage:
            counts, wrong = sender.run(at, garbage)
            click.echo(sender.text_of(at, counts, wrong))
            failed += bool(wrong)
            continue
        if is_long:
            most, wrong = effort.run(at)
            click.echo(effort.text_of(at, most, wrong))
            failed += bool(wrong)
            continue
        order = report.Order(
            seed=at,
            statements=statements,
            nodes=nodes,
            shrink=shrink,
            plant=plant,
            only=table,
            tablets=tablets,
        )
        outcome = report.run(order, click.echo)
        click.echo(report.text_of(outcome, order, time.monotonic() - began))
        failed += bool(outcome.found)
    return 1 if failed else 0


def _runner() -> ModuleType:
    """The simulator is large, so it is imported only when it is used."""
    from lockstep.sim import runner

    return runner
