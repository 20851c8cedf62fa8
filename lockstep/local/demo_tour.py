"""Owns the course of the demo: what is done to the cluster, in which order, while the traffic goes on.

Invariant: the main thread only waits, hears and shows; an operation that takes time runs on one other thread,
the traffic in another process, so nothing that is measured depends on the picture.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from lockstep.documents.tablets import TabletMap
from lockstep.local import tablet_picture
from lockstep.local.demo_cluster import DemoCluster, DemoProcess
from lockstep.local.demo_input import DemoInput
from lockstep.local.demo_messages import (
    HOT_KEYSPACE,
    HOT_TABLE,
    HOT_TABLETS,
    Command,
    Connect,
    Counts,
    Finished,
    Load,
    ReadBack,
    Report,
    StartTraffic,
    StopTraffic,
)
from lockstep.local.demo_screen import Event, Phase, PhaseState, Screen, View
from lockstep.local.demo_spark import SparkJob, SparkResult
from lockstep.values.errors import ConfigurationError, LockstepError, PeerTimeout

TICK_S: Final = 0.03
STATUS_INTERVAL_S: Final = 0.4
#: Loading and reading back take as long as there are rows; nothing else that is waited for takes longer.
COMMAND_TIMEOUT_S: Final = 3600.0
NODES: Final = 3
#: How many it is grown to.
GROWN: Final = 5


Result = TypeVar("Result")


class Options(msgspec.Struct, frozen=True):
    """What can be chosen about a tour. `settle_s` is how long the traffic runs between two operations."""

    report: Path
    input: Path | None = None
    rows: int | None = None
    ops_per_s: int = 600
    settle_s: float = 5.0
    spark: bool = True
    keep: bool = False
    name: str = "demo"
    first_address: str = "127.0.0.1"
    ports: tuple[int, int, int] = (9042, 7000, 7080)
    home: Path | None = None


class Results(msgspec.Struct):
    """What came of the tour, for the verdict. `failed` is the error that ended it early."""

    rows_given: int = 0
    counts: Counts = msgspec.field(default_factory=Counts)
    logs_agree: bool = False
    logs_told: str = ""
    #: What became of the hot table's tablets.
    tablets: str = ""
    spark: SparkResult | None = None
    failed: LockstepError | None = None
    driver: str = ""


class Tour:
    """One tour over a created, not yet started cluster."""

    def __init__(self, options: Options, cluster: DemoCluster, process: DemoProcess, screen: Screen) -> None:
        self._options = options
        self._cluster = cluster
        self._process = process
        self._screen = screen
        self._finished: Finished | None = None
        self._asked_s = 0.0
        self._worker: threading.Thread | None = None
        self.results = Results()
        self.spark = SparkJob(options.report)
        self.view = View(title="Lockstep demo", begin_s=time.monotonic(), phases=_phases(options))

    @property
    def samples_path(self) -> Path:
        return self._options.report / "samples.csv"

    def run(self, given: DemoInput) -> None:
        """The whole tour. An error of a phase ends it and is kept in `results.failed`.

        The first phase's error is raised: nothing was shown yet that a verdict could be about.
        """
        self.view.notes.append(f"input: {given.told}")
        self.results.rows_given = len(given.rows)
        with self._phase("start") as phase:
            self._while(self._cluster.local.start)
            self._while(self._cluster.wait_until_all_serve)
            addresses = ", ".join(self._cluster.local.contact_points)
            phase.told = f"{addresses} serve"
        try:
            self._load(given)
            self._under_traffic()
            self._prove(given)
        except LockstepError as error:
            self.results.failed = error
            for phase in self.view.phases:
                if phase.state is PhaseState.WAITING:
                    phase.state = PhaseState.SKIPPED

    def _load(self, given: DemoInput) -> None:
        with self._phase("load") as phase:
            phase.told = f"into {given.table.described()}"
            content = self._cluster.local.file
            connected = self._command(
                Connect(
                    contact_points=tuple(self._cluster.local.contact_points),
                    port=content.cql_port,
                    replication_factor=NODES,
                    table=given.table,
                    samples_path=str(self.samples_path),
                )
            )
            self.results.driver = connected.note
            loaded = self._command(Load(given.rows))
            rate = loaded.counts.loaded / max(loaded.seconds, 0.001)
            phase.told = f"{loaded.counts.loaded:,} rows into {given.table.name}, {rate:,.0f} rows/s"

    def _under_traffic(self) -> None:
        local, settle = self._cluster.local, self._settle
        with self._phase("traffic") as phase:
            phase.told = f"writers and readers at QUORUM, {self._options.ops_per_s} operations/s"
            self._command(StartTraffic(self._options.ops_per_s))
            self.view.traffic = True
            settle()
            self._draw("tablets-before", self._cluster.hot_tablets())
        with self._phase("grow") as phase:
            names: list[str] = []
            while len(names) < GROWN - NODES:
                if names:
                    settle()
                with self._event(f"n{NODES + len(names) + 1} joins"):
                    phase.told = f"n{NODES + len(names) + 1} takes its share from all the others"
                    names.append(self._while(local.add).name)
                    self._while(self._cluster.wait_until_all_serve)
            phase.told = f"{' and '.join(names)} own their shares"
        self._spread()
        self._replace_killed()
        settle()
        with self._phase("shrink") as phase:
            left: list[str] = []
            while len(left) < GROWN - NODES:
                left.append(self._decommission_leader(phase))
                settle()
            self._cluster.refresh()
            voters = self._cluster.voters()
            phase.told = f"{' and '.join(left)} left, each as metadata leader; {voters} vote now"

    def _spread(self) -> None:
        """The hot table, which grew meanwhile, has been split, and the newcomers have their share of it."""
        with self._phase("spread") as phase:
            phase.told = f"{HOT_KEYSPACE}.{HOT_TABLE} grows, is split, and moves to the newcomers"
            told = self._while(self._cluster.wait_until_spread)
            self._draw("tablets-after", told)
            held = [node.tablets for node in told.nodes]
            self.results.tablets = f"{HOT_TABLETS} became {len(told.tablets)}, on {len(held)} nodes"
            phase.told = f"{self.results.tablets}: {min(held)} to {max(held)} replicas on each"

    def _draw(self, name: str, told: TabletMap) -> None:
        """Into the report; as pixels, too, where the library for it is there."""
        shapes = tablet_picture.picture(told)
        (self._options.report / f"{name}.svg").write_text(tablet_picture.svg(shapes))
        with contextlib.suppress(ConfigurationError):
            (self._options.report / f"{name}.png").write_bytes(tablet_picture.png(shapes))

    def _replace_killed(self) -> None:
        local, cluster = self._cluster.local, self._cluster
        with self._phase("replace") as phase:
            victim = cluster.leader()
            phase.told = f"SIGKILL to {victim}, which leads the metadata group"
            with self._event(f"{victim} killed"):
                self._while(lambda: local.kill(victim))
                self._while(lambda: cluster.wait_until_dead(victim))
            self._settle()
            with self._event(f"{victim} replaced"):
                phase.told = f"a new node takes the place of {victim}, from its other replicas"
                begin_s = time.monotonic()
                added = self._while(lambda: local.add(replaces=victim))
                self._while(cluster.wait_until_all_serve)
            took_s = time.monotonic() - begin_s
            phase.told = (
                f"{added.name} took the place of {victim}, the killed metadata leader, in {took_s:.1f} s"
            )

    def _decommission_leader(self, phase: Phase) -> str:
        """The name of the node that left."""
        leaving = self._cluster.leader()
        phase.told = f"{leaving}, which leads the metadata group, hands its vote and its ranges over"
        with self._event(f"{leaving} leaves"):
            self._while(lambda: self._cluster.decommission(leaving))
        return leaving

    def _prove(self, given: DemoInput) -> None:
        with self._phase("proof") as phase:
            stopped = self._command(StopTraffic())
            self.view.traffic = False
            phase.told = f"{stopped.counts.writes_acknowledged + stopped.counts.loaded:,} acknowledged rows"
            counts = self._command(ReadBack()).counts
            self.results.counts = counts
            self._cluster.refresh()
            self.results.logs_agree, self.results.logs_told = self._cluster.logs_agree()
            lost = "none lost" if not counts.lost else f"{counts.lost} LOST"
            phase.told = f"{counts.read_back:,} rows compared at QUORUM, {lost}"
        if self._options.spark:
            self._spark(given)

    def _spark(self, given: DemoInput) -> None:
        content = self._cluster.local.file
        with self._phase("spark") as phase:
            phase.told = "count and export both tables, draw the report"
            result = self._while(
                lambda: self.spark.run(
                    self._cluster.running_addresses(),
                    content.cql_port,
                    given.table.name,
                    self.results.counts.loaded,
                    self.samples_path,
                    self.view.events,
                    self._cluster.doors(),
                )
            )
            self.results.spark = result
            phase.told = f"{result.rows:,} rows, {result.rows_per_s:,.0f} rows/s; Parquet and chart written"

    def wait_for_worker(self, timeout_s: float) -> None:
        """After an interrupt: let the operation that was going on end, if it does."""
        if self._worker is not None:
            self._worker.join(timeout_s)

    @contextmanager
    def _phase(self, key: str) -> Iterator[Phase]:
        phase = self.view.phase(key)
        phase.state, phase.begin_s = PhaseState.RUNNING, time.monotonic()
        phase.epoch_before = self._cluster.epoch
        try:
            yield phase
        except BaseException as error:
            phase.state, phase.end_s = PhaseState.FAILED, time.monotonic()
            phase.told = "interrupted" if isinstance(error, KeyboardInterrupt) else str(error)
            raise
        self._cluster.refresh()
        phase.epoch_after = self._cluster.epoch
        phase.state, phase.end_s = PhaseState.DONE, time.monotonic()
        self._tick()

    @contextmanager
    def _event(self, label: str) -> Iterator[None]:
        begin_s = time.monotonic()
        try:
            yield
        finally:
            self.view.events.append(Event(label, begin_s, time.monotonic()))

    def _settle(self) -> None:
        until = time.monotonic() + self._options.settle_s
        while time.monotonic() < until:
            self._tick()

    def _command(self, command: Command) -> Finished:
        """Give a command to the load process and wait until it is done."""
        self._finished = None
        self._process.send(command)
        deadline = time.monotonic() + COMMAND_TIMEOUT_S
        while self._finished is None:
            if time.monotonic() >= deadline:
                raise PeerTimeout(f"the load process did not end {type(command).__name__}")
            self._tick()
        self.results.counts = self._finished.counts
        return self._finished

    def _while(self, call: Callable[[], Result]) -> Result:
        """What `call` returned or raised, run on another thread while the picture goes on."""
        ended: list[Result] = []
        raised: list[BaseException] = []

        def body() -> None:
            try:
                ended.append(call())
            except BaseException as error:
                raised.append(error)

        self._worker = threading.Thread(target=body, name="operation", daemon=True)
        self._worker.start()
        while self._worker.is_alive():
            self._tick()
        if raised:
            raise raised[0]
        return ended[0]

    def _tick(self) -> None:
        """Hear the load process, ask for the status now and then, show the picture, and sleep a moment."""
        for message in self._process.heard():
            if isinstance(message, Report):
                self.view.report = message
                self.results.counts = message.counts
            else:
                self._finished = message
        now = time.monotonic()
        if now - self._asked_s >= STATUS_INTERVAL_S:
            self._asked_s = now
            self._cluster.refresh()
            self.view.nodes = self._cluster.lines()
            self.view.epoch = self._cluster.epoch
            self.view.operation = self._cluster.operation()
        self._screen.update(self.view)
        time.sleep(TICK_S)


def _phases(options: Options) -> list[Phase]:
    phases = [
        Phase("start", f"Start {NODES} nodes"),
        Phase("load", "Load the input"),
        Phase("traffic", "Write and read at QUORUM"),
        Phase("grow", f"Grow to {GROWN} nodes"),
        Phase("spread", "A hot table splits and spreads"),
        Phase("replace", "Kill the leader, replace it"),
        Phase("shrink", f"Shrink back to {NODES} nodes"),
        Phase("proof", "Read every acknowledged row back"),
    ]
    return [*phases, Phase("spark", "Spark job and report")] if options.spark else phases
