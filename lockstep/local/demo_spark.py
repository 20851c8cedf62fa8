"""Owns the demo's Spark job: a process that reads the cluster's tables, draws the report, and runs jobs of
`lockstep pipeline` over one of them.

Invariant: neither the process nor its Java outlives the demo; they share a session that ends as a whole.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from lockstep.documents import read
from lockstep.documents.status import Placements
from lockstep.local import processes
from lockstep.local.admin_client import AdminClient
from lockstep.local.demo_messages import KEYSPACE, TRAFFIC_TABLE
from lockstep.local.demo_screen import Event
from lockstep.values.errors import LockstepError, PeerTimeout

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Java, two scans, a chart and four jobs take some forty seconds on two busy cores.
JOB_TIMEOUT_S: Final = 240.0
_POLL_S: Final = 0.05
#: After an interrupt: how long Java may take to remove its temporary files.
JAVA_END_S: Final = 3.0


class PipelineResult(msgspec.Struct, frozen=True):
    """What the jobs did with the loaded table: it was exported, loaded from there into another table, both
    were compared, and its replicas with each other. Rows, and how many differ."""

    exported: int
    loaded_again: int
    differing: int
    audited_replicas: int
    replicas_differing: int
    seconds: float


class SparkResult(msgspec.Struct, frozen=True):
    """What was found. `scan_s` is the time from the tables to Parquet, without the start of Java."""

    loaded_rows: int
    traffic_rows: int
    repeated_rows: int
    scan_s: float
    total_s: float
    pipeline: PipelineResult | None = None

    @property
    def rows(self) -> int:
        return self.loaded_rows + self.traffic_rows

    @property
    def rows_per_s(self) -> float:
        return self.rows / max(self.scan_s, 0.001)


class Job(msgspec.Struct, frozen=True):
    """Everything the job is told."""

    hosts: tuple[str, ...]
    port: int
    loaded_table: str
    loaded_rows: int
    report: str
    samples: str
    events: tuple[Event, ...]
    doors: dict[int, AdminClient] = {}


class SparkJob:
    """At most one job at a time; `close` ends it whatever it does."""

    def __init__(self, report: Path) -> None:
        self._report = report
        self._process: Any = None

    def run(
        self,
        hosts: Sequence[str],
        port: int,
        table: str,
        loaded_rows: int,
        samples: Path,
        events: Sequence[Event],
        doors: Mapping[int, AdminClient],
    ) -> SparkResult:
        """Start the job and wait for its end. LockstepError with its last words when it fails."""
        job = Job(
            hosts=tuple(hosts),
            port=port,
            loaded_table=table,
            loaded_rows=loaded_rows,
            report=str(self._report),
            samples=str(samples),
            events=tuple(events),
            doors=dict(doors),
        )
        log = self._report / "spark.log"
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe(duplex=False)
        self._process = context.Process(target=_child, args=(theirs, job, str(log)), daemon=True)
        self._process.start()
        theirs.close()
        with contextlib.closing(ours):
            deadline = time.monotonic() + JOB_TIMEOUT_S
            while not ours.poll(_POLL_S):
                if time.monotonic() >= deadline:
                    raise PeerTimeout(f"the Spark job still runs after {JOB_TIMEOUT_S:g} s; see {log}")
            try:
                said = ours.recv()
            except EOFError:
                raise LockstepError(f"the Spark job ended without a result; see {log}") from None
        if isinstance(said, str):
            raise LockstepError(f"the Spark job failed: {said}; see {log}")
        assert isinstance(said, SparkResult)
        return said

    def close(self) -> None:
        """End the job and its Java, which gets a moment to remove its temporary files."""
        if self._process is None or self._process.pid is None:
            return
        group = self._process.pid
        if self._process.is_alive():
            _signal_group(group, signal.SIGTERM)
            # It may not have got to make its group yet.
            self._process.terminate()
        self._process.join()
        processes.wait_until(lambda: not _signal_group(group, signal.SIGCONT), JAVA_END_S)
        _signal_group(group, signal.SIGKILL)
        self._process = None


def _signal_group(group: int, number: signal.Signals) -> bool:
    """False when no process of the group is left."""
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return False
    return True


def _child(connection: Connection, job: Job, log: str) -> None:
    # A group of its own: `close` ends Java with it, and an interrupt from the terminal does not reach it.
    os.setsid()
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    os.dup2(output, 1)
    os.dup2(output, 2)
    try:
        connection.send(_run(job))
    except Exception as error:
        # Written before the parent is told: it ends this process as soon as it knows.
        traceback.print_exc()
        sys.stderr.flush()
        connection.send(_reason(error))
        raise


def _reason(error: Exception) -> str:
    """One line. Of an error inside Java, also its first line there, which names the cause."""
    lines = [line.strip() for line in f"{type(error).__name__}: {error}".splitlines() if line.strip()]
    return " ".join(lines[: 2 if lines[0].endswith((".", ":")) else 1])


def _run(job: Job) -> SparkResult:
    from lockstep.spark.report import Span, local_session, summarise

    begin_s = time.monotonic()
    session = local_session(f"report of {KEYSPACE}")
    summary = summarise(
        session=session,
        hosts=job.hosts,
        port=job.port,
        keyspace=KEYSPACE,
        tables={job.loaded_table: job.loaded_rows, TRAFFIC_TABLE: None},
        out=Path(job.report),
        samples=Path(job.samples),
        spans=[Span(event.label, event.begin_s, event.end_s) for event in job.events],
        title="Latency at QUORUM while the cluster changed",
    )
    loaded, traffic = summary.tables
    return SparkResult(
        loaded_rows=loaded.rows,
        traffic_rows=traffic.rows,
        repeated_rows=sum(table.rows - table.distinct_keys for table in summary.tables),
        scan_s=summary.scan_s,
        pipeline=_pipeline(session, job),
        total_s=time.monotonic() - begin_s,
    )


def _pipeline(session: SparkSession, job: Job) -> PipelineResult:
    from lockstep.spark.jobs import audit, export, load, verify
    from lockstep.spark.jobs.running import Silent
    from lockstep.spark.jobs.tables import Access, TableName, describe

    begin_s, silent = time.monotonic(), Silent()
    access = Access(",".join(job.hosts), job.port)
    table, again = TableName(KEYSPACE, job.loaded_table), TableName(KEYSPACE, f"{job.loaded_table}_again")
    to = str(Path(job.report) / "export")
    exported = export.run(session, access, export.Export(table, to), silent)
    loaded = load.run(session, access, load.Load(again, (to,), create=True), silent)
    compared = verify.run(session, access, verify.Verify(to, again.text), silent)
    told = next(iter(job.doors.values())).get("/v1/placements", keyspace=KEYSPACE, table=job.loaded_table)
    placements = read(Placements, told)
    described = describe(access, table)
    audited = audit.run(session, job.doors, placements, described, audit.Audit(table), silent, access)
    return PipelineResult(
        exported=exported.rows,
        loaded_again=loaded.written,
        differing=len(compared.differences) + compared.more,
        audited_replicas=len(audited.rows),
        replicas_differing=audited.different + len(audited.unanswered),
        seconds=time.monotonic() - begin_s,
    )
