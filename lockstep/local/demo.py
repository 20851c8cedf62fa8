"""Owns `lockstep demo`: one run from the first process to the verdict, and that nothing stays behind.

Invariant: every process that the demo started has ended when it returns or raises, unless the cluster is to
be kept; the cluster it makes is its own, and no other one is touched.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any, Final

from lockstep.local import demo_input, demo_verdict
from lockstep.local.clusters import LocalCluster
from lockstep.local.demo_cluster import DemoCluster
from lockstep.local.demo_input import DemoInput
from lockstep.local.demo_process import DemoProcess
from lockstep.local.demo_screen import open_screen
from lockstep.local.demo_tour import NODES, Options, Tour
from lockstep.local.processes import State
from lockstep.values.errors import ConfigurationError, PreconditionError

LOGS: Final = "node-logs"
#: What a demo writes into its report directory, besides the CSV file and its table as Parquet.
OUTPUTS: Final = (
    "latency.png",
    "latency.svg",
    "verdict.json",
    "samples.csv",
    "spark.log",
    "traffic.parquet",
    LOGS,
)
#: After an interrupt: how long an operation that was going on may take to notice that its nodes are gone.
WORKER_END_S: Final = 5.0


def run(options: Options) -> int:
    """Take the tour and print the verdict; 0 when every check held, 1 otherwise.

    Raises what kept it from starting: PreconditionError when a port or the cluster's name is taken,
    ConfigurationError for an input that cannot be read.
    """
    given = _input(options)
    local = _create(options)
    keep = False
    tour: Tour | None = None
    process: DemoProcess | None = None
    with _termination_as_interrupt():
        try:
            _remove_earlier_outputs(options.report)
            process = DemoProcess()
            screen = open_screen(sys.stderr)
            tour = Tour(options, DemoCluster(local), process, screen)
            try:
                tour.run(given)
            finally:
                screen.close(tour.view)
            verdict = demo_verdict.checks(tour.results, tour.view, with_spark=options.spark)
            held = demo_verdict.all_held(verdict)
            document = demo_verdict.document(verdict, tour.results, tour.view)
            (options.report / "verdict.json").write_text(json.dumps(document, indent=2) + "\n")
            if not held:
                DemoCluster(local).copy_logs(options.report / LOGS)
            keep = options.keep
            if keep:
                _forget_left_nodes(local)
        finally:
            _clean_up(local, tour, process, keep=keep)
    seconds = time.monotonic() - tour.view.begin_s
    print()
    demo_verdict.show(verdict, tour.results, seconds, sys.stdout)
    _tell_the_end(options)
    return 0 if held else 1


def _create(options: Options) -> LocalCluster:
    try:
        return LocalCluster.create(
            options.name, NODES, first_address=options.first_address, ports=options.ports, home=options.home
        )
    except PreconditionError as error:
        raise PreconditionError(
            f"{error.message}: an earlier demo was kept, or did not end in order",
            hint=f"lockstep cluster destroy {options.name}",
        ) from error


def _clean_up(local: LocalCluster, tour: Tour | None, process: DemoProcess | None, *, keep: bool) -> None:
    """End everything that was started. A second interrupt does not keep it from that."""
    with _interrupts_ignored():
        if tour is not None:
            tour.spark.close()
        if process is not None:
            process.close()
        if keep:
            return
        local.destroy()
        if tour is not None:
            tour.wait_for_worker(WORKER_END_S)
        if local.paths.cluster_file.exists():
            # The operation that was going on had started one more node.
            local.destroy()


def _input(options: Options) -> DemoInput:
    """The rows to load; made ones are kept in the report directory, which exists afterwards."""
    try:
        options.report.mkdir(parents=True, exist_ok=True)
        if options.input is None:
            return demo_input.make_csv(options.report, options.rows or demo_input.ROWS_DEFAULT)
    except OSError as error:
        raise ConfigurationError(
            f"the report cannot be written to {options.report}: {error.strerror}",
            hint="choose another --report",
        ) from error
    return demo_input.read_csv(options.input, options.rows or demo_input.ROWS_MAX)


def _remove_earlier_outputs(directory: Path) -> None:
    """So that nothing in the report is of another run; what else lies there is left alone."""
    for name in OUTPUTS:
        path = directory / name
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def _forget_left_nodes(local: LocalCluster) -> None:
    """A kept cluster lists only nodes that it can start again."""
    for name, state in local.states().items():
        if state is State.STOPPED and not local.file.node(name).founder:
            local.forget(name)


def _tell_the_end(options: Options) -> None:
    names = [name for name in OUTPUTS if (options.report / name).exists()]
    print(f"\nreport in {options.report}/: {', '.join(names)}")
    if options.keep:
        print(f"the cluster runs on; end it with: lockstep cluster destroy {options.name}")


@contextlib.contextmanager
def _termination_as_interrupt() -> Iterator[None]:
    """SIGTERM and SIGHUP end the demo as ctrl-C does, so that its processes end with it."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    with _handlers(interrupt, signal.SIGTERM, signal.SIGHUP):
        yield


@contextlib.contextmanager
def _interrupts_ignored() -> Iterator[None]:
    with _handlers(signal.SIG_IGN, signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        yield


@contextlib.contextmanager
def _handlers(handler: Any, *numbers: signal.Signals) -> Iterator[None]:
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, one in before.items():
            signal.signal(number, one)
