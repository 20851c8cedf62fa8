"""Owns `lockstep demo`: one run from the first process to the verdict, and that nothing stays behind.

Invariant: every process that the demo started has ended when it returns or raises, unless the cluster is to
be kept; the cluster it makes is its own, and no other one is touched. The demo succeeds only when every check
here holds; numbers that are no check say so by having no mark.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any, Final, TextIO

import msgspec

from lockstep.local import demo_input
from lockstep.local.clusters import LocalCluster
from lockstep.local.demo_cluster import DemoCluster, DemoProcess
from lockstep.local.demo_input import DemoInput
from lockstep.local.demo_messages import HOT_TARGET_BYTES_PER_OP
from lockstep.local.demo_screen import PhaseState, View, open_screen
from lockstep.local.demo_tour import NODES, Options, Results, Tour
from lockstep.local.processes import State
from lockstep.values.errors import ConfigurationError, PreconditionError

#: Tablets of a few hundred kilobytes are weighed often: the demo has no minutes.
LOAD_REFRESH_MS: Final = 1000
#: Kinds of errors that the verdict names.
ERROR_KINDS_SHOWN: Final = 6


class Check(msgspec.Struct, frozen=True):
    """One line of the verdict. `held` is None for a number that is only told."""

    name: str
    value: str
    held: bool | None = None


def checks(results: Results, view: View, *, with_spark: bool) -> list[Check]:
    """The verdict of a tour, ended or broken off. A check whose phase never ran did not hold."""
    counts = results.counts
    acknowledged = counts.loaded + counts.writes_acknowledged
    proof = view.phase("proof").state is PhaseState.DONE
    made = [
        _share("rows loaded", counts.loaded, results.rows_given),
        Check(
            "writes acknowledged under topology changes",
            f"{counts.writes_acknowledged:,} of {counts.writes_attempted:,} attempted",
            counts.writes_acknowledged > 0,
        ),
        _share("acknowledged rows read back", counts.read_back, acknowledged),
        Check(
            "acknowledged rows lost",
            f"{counts.lost:,}" if proof else "not checked",
            proof and not counts.lost,
        ),
        Check(
            "reads under topology changes, all right",
            f"{counts.reads:,}, {counts.wrong_reads:,} wrong",
            counts.reads > 0 and not counts.wrong_reads,
        ),
        Check(
            "client errors after the driver's retries", f"{counts.client_errors:,}", not counts.client_errors
        ),
        Check("raw errors that the driver retried", f"{counts.raw_errors:,}"),
    ]
    made += [_operation(view, *one) for one in _OPERATIONS]
    spread = view.phase("spread").state is PhaseState.DONE
    made.append(Check("tablets of the hot table", results.tablets or "not checked", spread))
    made.append(
        Check("metadata log equal on all nodes", results.logs_told or "not checked", results.logs_agree)
    )
    if with_spark:
        made += _spark_checks(results)
    if results.failed is not None:
        made.append(Check("the tour ran to its end", results.failed.message, False))
    return made


def all_held(verdict: list[Check]) -> bool:
    return all(check.held is not False for check in verdict)


def verdict_document(verdict: list[Check], results: Results, view: View) -> dict[str, Any]:
    """The verdict as `demo-verdict/1`, for scripts."""
    return {
        "schema": "demo-verdict/1",
        "held": all_held(verdict),
        "driver": results.driver,
        "input": next(iter(view.notes), ""),
        "checks": [msgspec.to_builtins(check) for check in verdict],
        "counts": msgspec.to_builtins(results.counts),
        "phases": [
            {
                "name": phase.key,
                "state": phase.state.value,
                "seconds": round(phase.seconds, 3),
                "begin_s": round(phase.begin_s, 4),
                "epoch_before": phase.epoch_before,
                "epoch_after": phase.epoch_after,
            }
            for phase in view.phases
        ],
        "events": [msgspec.to_builtins(event) for event in view.events],
        "spark": msgspec.to_builtins(results.spark),
        "seconds": round(max(phase.end_s for phase in view.phases) - view.begin_s, 3),
    }


def show(verdict: list[Check], results: Results, seconds: float, stream: TextIO) -> None:
    """Print the verdict as a table, how long it took, and what the errors were when there were any."""
    show_checks(verdict, seconds, stream)
    errors = sorted(results.counts.errors.items(), key=lambda item: -item[1])[:ERROR_KINDS_SHOWN]
    if errors:
        print("\nerrors seen, the most frequent kinds with an example:", file=stream)
    for kind, number in errors:
        print(f"  {number:>6,}  {kind}: {results.counts.examples.get(kind, '')}", file=stream)


def show_checks(verdict: list[Check], seconds: float, stream: TextIO) -> None:
    """As a table, and how long it took."""
    if stream.isatty():
        _show_table(verdict, stream)
    else:
        width = max(len(check.name) for check in verdict)
        for check in verdict:
            print(f"{_MARKS[check.held]:4}  {check.name.ljust(width)}  {check.value}", file=stream)
    failed = sum(check.held is False for check in verdict)
    ending = f"{failed} checks FAILED" if failed else "every check held"
    print(f"\n{ending}, after {seconds:.0f} s", file=stream)


_OPERATIONS: Final = (
    ("grow", "grown from 3 to 5 nodes"),
    ("replace", "the metadata leader was killed and replaced"),
    ("shrink", "shrunk back to 3, each time by the metadata leader"),
)
_MARKS: Final = {True: "ok", False: "FAIL", None: ""}


def _share(name: str, number: int, total: int) -> Check:
    return Check(name, f"{number:,} of {total:,}", 0 < number == total)


def _operation(view: View, key: str, name: str) -> Check:
    phase = view.phase(key)
    if phase.state is not PhaseState.DONE:
        return Check(name, phase.state.value, False)
    first = phase.epoch_before + 1
    epochs = f"epochs {first} to {phase.epoch_after}" if phase.epochs else "no epoch"
    return Check(name, f"{phase.seconds:.1f} s, {epochs}", True)


def _spark_checks(results: Results) -> list[Check]:
    counts, spark = results.counts, results.spark
    if spark is None:
        return [Check("Spark read both tables", "did not run", False)]
    least = counts.writes_acknowledged - counts.hot_acknowledged
    most = counts.writes_attempted - counts.hot_attempted
    return [
        Check(
            "Spark count of the loaded table",
            f"{spark.loaded_rows:,}, {counts.loaded:,} loaded",
            spark.loaded_rows == counts.loaded,
        ),
        Check(
            "Spark count of the traffic table",
            f"{spark.traffic_rows:,}, {least:,} acknowledged, {most:,} attempted",
            least <= spark.traffic_rows <= most,
        ),
        Check("rows that Spark saw twice", f"{spark.repeated_rows:,}", not spark.repeated_rows),
        Check("Spark scan to Parquet", f"{spark.rows_per_s:,.0f} rows/s"),
        *_pipeline_checks(results),
    ]


def _pipeline_checks(results: Results) -> list[Check]:
    loaded, done = results.counts.loaded, results.spark.pipeline if results.spark is not None else None
    if done is None:
        return [Check("jobs over the loaded table", "did not run", False)]
    return [
        Check(
            "rows exported, and loaded from there into another table",
            f"{done.exported:,} and {done.loaded_again:,}",
            loaded == done.exported == done.loaded_again,
        ),
        Check("rows that differ between the two", f"{done.differing:,}", not done.differing),
        Check(
            "elements that replicas hold differently",
            f"{done.replicas_differing:,} on {done.audited_replicas} replicas",
            done.audited_replicas > 1 and not done.replicas_differing,
        ),
        Check("export, load, verify and audit", f"{done.seconds:.1f} s"),
    ]


def _show_table(verdict: list[Check], stream: TextIO) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.add_column("")
    table.add_column("checked")
    table.add_column("found", overflow="fold")
    marks = {True: Text("✓", "green"), False: Text("✗ FAIL", "bold red"), None: Text("")}
    for check in verdict:
        table.add_row(marks[check.held], check.name, check.value)
    Console(file=stream, no_color=bool(os.environ.get("NO_COLOR")), highlight=False).print(table)


LOGS: Final = "node-logs"
#: What a demo writes into its report directory, besides the CSV file and its table as Parquet.
OUTPUTS: Final = (
    "latency.png",
    "latency.svg",
    "tablets-before.svg",
    "tablets-before.png",
    "tablets-after.svg",
    "tablets-after.png",
    "verdict.json",
    "samples.csv",
    "export",
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
    with termination_as_interrupt():
        try:
            _remove_earlier_outputs(options.report)
            process = DemoProcess()
            screen = open_screen(sys.stderr)
            tour = Tour(options, DemoCluster(local), process, screen)
            try:
                tour.run(given)
            finally:
                screen.close(tour.view)
            verdict = checks(tour.results, tour.view, with_spark=options.spark)
            held = all_held(verdict)
            document = verdict_document(verdict, tour.results, tour.view)
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
    show(verdict, tour.results, seconds, sys.stdout)
    _tell_the_end(options)
    return 0 if held else 1


def _create(options: Options) -> LocalCluster:
    try:
        return LocalCluster.create(
            options.name,
            NODES,
            first_address=options.first_address,
            ports=options.ports,
            home=options.home,
            settings={
                "tablets": {
                    "target_size_bytes": max(1024, HOT_TARGET_BYTES_PER_OP * options.ops_per_s),
                    "load_refresh_ms": LOAD_REFRESH_MS,
                }
            },
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
def termination_as_interrupt() -> Iterator[None]:
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
