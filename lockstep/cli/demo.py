"""Owns `lockstep demo`."""

from __future__ import annotations

import importlib

import click


@click.command()
@click.option("--keep", is_flag=True, help="Leave the cluster running at the end.")
def demo(keep: bool) -> int:
    """Start three nodes, load them, change the topology under traffic, and check that nothing was lost."""
    # The tour loads drivers and more, so it is imported only when it is used.
    tour = importlib.import_module("lockstep.local.demo")
    return int(tour.run(keep=keep))
