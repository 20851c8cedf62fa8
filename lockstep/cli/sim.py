"""Owns `lockstep sim`: run seeds of the simulation, and run one failure again."""

from __future__ import annotations

import importlib
from typing import Any

import click


@click.group()
def sim() -> None:
    """A whole cluster in one process, on simulated time, network and disks."""


@sim.command()
@click.option("--seed", default=1, show_default=True, help="First seed.")
@click.option("--seeds", default=1, show_default=True, help="How many seeds, one after another.")
@click.option("--scenario", default="", help="Only this scenario; all of them by default.")
def run(seed: int, seeds: int, scenario: str) -> int:
    """Run seeds; a failure prints the command that repeats it exactly."""
    return int(_runner().run(seed, seeds, scenario))


@sim.command()
@click.argument("what", metavar="FILE|SEED")
def replay(what: str) -> int:
    """Run one recorded failure, or one seed, again with its full trace."""
    return int(_runner().replay(what))


def _runner() -> Any:
    """The simulator is large, so it is imported only when it is used."""
    return importlib.import_module("lockstep.sim.runner")
