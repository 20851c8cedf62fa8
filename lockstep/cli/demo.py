"""Owns `lockstep demo`."""

from __future__ import annotations

from pathlib import Path

import click

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
_DIRECTORY = click.Path(file_okay=False, path_type=Path)


@click.command()
@click.option(
    "--input",
    "input_",
    type=_FILE,
    metavar="FILE",
    help="CSV with a header to load; by default, rows made from what this machine has.",
)
@click.option("--rows", type=click.IntRange(1), help="Load at most this many rows.")
@click.option("--rate", default=600, show_default=True, type=click.IntRange(2, 20_000), help="Operations/s.")
@click.option("--settle", default=5.0, show_default=True, help="Seconds of traffic between two operations.")
@click.option("--report", default=Path("demo-report"), show_default=True, type=_DIRECTORY, metavar="DIR")
@click.option("--spark/--no-spark", default=True, show_default=True, help="End with the Spark job.")
@click.option("--first-address", default="127.0.0.1", show_default=True, help="Address of the first node.")
@click.option("--keep", is_flag=True, help="Leave the cluster running at the end.")
def demo(
    input_: Path | None,
    rows: int | None,
    rate: int,
    settle: float,
    report: Path,
    spark: bool,
    first_address: str,
    keep: bool,
) -> int:
    """Start three nodes, load them, change the topology under traffic, and check that nothing was lost."""
    # The tour loads much that no other command needs, so it is imported only when it is used.
    from lockstep.local.demo import run
    from lockstep.local.demo_tour import Options

    return run(
        Options(
            report=report,
            input=input_,
            rows=rows,
            ops_per_s=rate,
            settle_s=settle,
            spark=spark,
            keep=keep,
            first_address=first_address,
        )
    )
