"""Seeds as rows, divided into tasks; the log proved epoch by epoch."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
from pyspark.sql import SparkSession

from lockstep.cli.shared.client import ClusterClient
from lockstep.local.clusters import LocalCluster
from lockstep.metadata.cluster import empty_cluster
from lockstep.metadata.log.apply import apply_entry
from lockstep.metadata.log.entries import LogEntry, seal
from lockstep.metadata.log.snapshot_file import dump_file
from lockstep.node.kinds import every_kind
from lockstep.sim.drills.quorum_report import PlacementRun, layouts
from lockstep.spark.jobs import history, running, sweep
from lockstep.spark.jobs.running import SessionSettings, Silent
from lockstep.spark.jobs.sweep import QUORUMS, Case, Swept
from lockstep.values.errors import CannotApply, ConfigurationError, CorruptFile, LogTruncated


def row(name: str, cpu_s: float) -> Swept:
    return Swept(name, 1, "", "", "", 0, cpu_s, 0)


def test_seeds_go_round_the_scenarios_and_bugs_to_their_seed() -> None:
    found = sweep.cases(10, 4, QUORUMS, ["read_at_once@12"])
    assert [one.seed for one in found] == [10, 11, 12, 13]
    assert [one.plant for one in found] == ["", "", "read_at_once", ""]
    names = [one.scenario for one in sweep.cases(1, 40)]
    assert len(set(names)) > 10 and names[0] == sweep.cases(1, 1)[0].scenario
    for wrong in ("read_at_once@14", "read_at_once", "nothing@10"):
        with pytest.raises(ConfigurationError):
            sweep.cases(10, 4, QUORUMS, [wrong])
    with pytest.raises(ConfigurationError, match="no scenario"):
        sweep.cases(1, 1, "nothing")
    assert [one.scenario for one in sweep.cases(1, 3, "quorums,tracked")] == ["quorums", "tracked", "quorums"]
    with pytest.raises(ConfigurationError, match="no scenario"):
        sweep.cases(1, 3, "quorums,")


def test_tasks_have_seconds_of_work_whatever_a_seed_costs() -> None:
    wanted = [Case("a" if seed % 2 else "b", seed) for seed in range(1000)]
    chunks = sweep.divided(wanted, [row("a", 0.01), row("b", 0.03)])
    assert len(chunks) == 4 and {len(chunk) for chunk in chunks} == {250}
    assert sorted(one.seed for chunk in chunks for one in chunk) == list(range(1000))
    assert len(sweep.divided(wanted, [row("a", 60.0), row("b", 60.0)])) == 1000
    assert sweep.divided([], []) == []


def test_19_a_planted_bug_is_found_at_its_seed_alone_and_repeats_elsewhere() -> None:
    wanted = sweep.cases(104, 6, QUORUMS, ["read_at_once@107"])
    rows = sweep.swept(wanted)
    (failed,) = [one for one in rows if one.violation]
    assert failed.seed == 107 and failed.invariant == "quorums meet" and "miss a write" in failed.violation
    code = (
        "from lockstep.spark.jobs import sweep; "
        "print(sweep.one_seed(sweep.Case('quorums', 107, 'read_at_once')).digest)"
    )
    other = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120
    )
    assert other.stdout.strip() == failed.digest


class Log:
    """A run of operations as entries, and dumps of it as a node makes them."""

    def __init__(self) -> None:
        made: list[tuple[int, bytes]] = []

        class Noted(PlacementRun):
            def _submit(self, body: object) -> bool:
                before = self.now.epoch
                taken = super()._submit(body)  # type: ignore[arg-type]
                if taken and self.now.epoch > before:
                    made.append(self._registry.encode(body))
                return taken

        Noted(layouts((3,))[1], 5, 4)
        registry = every_kind()
        self.values, self.entries = [empty_cluster()], list[LogEntry]()
        for number, (kind, body) in enumerate(made, start=1):
            last = self.values[-1]
            entry = seal(
                epoch=number, entry_id=number.to_bytes(16, "big"), kind=kind, body=body, actor="test",
                commit_time_us=number * 1_000_000, term=1, previous_hash=last.hash,
            )  # fmt: skip
            self.entries.append(entry)
            self.values.append(apply_entry(last, entry, registry))

    def dump(self, epoch: int, first: int = 0) -> bytes:
        """From the value of `first` to `epoch`."""
        return b"".join(dump_file(self.values[first], self.entries[first:epoch]))


@pytest.fixture(scope="module")
def log() -> Log:
    return Log()


def test_every_epoch_of_a_sound_log_is_proved(log: Log) -> None:
    last = len(log.entries)
    middle = last // 2
    dumps = history.fetch(lambda epoch: log.dump(epoch, middle if epoch > middle else 0), 1, last)
    assert [dump.base.epoch for _, dump in dumps] == [0, middle]
    found = [one for part in history.segments(dumps, 3, last) for one in history.proved(part)]
    assert [one.epoch for one in found] == list(range(3, last + 1))
    assert not any(one.problems for one in found)
    assert any("placements" in path for one in found for path in one.changed)
    assert found[0].actor == "test" and found[-1].hash == log.values[-1].hash.hex()
    assert "kind=" in " ".join(one.summary for one in found)


def test_what_is_kept_no_more_is_left_out(log: Log) -> None:
    last = len(log.entries)

    def dump_of(epoch: int) -> bytes:
        if epoch < last:
            raise LogTruncated("gone", 5)
        return log.dump(epoch, 4)

    dumps = history.fetch(dump_of, 1, last)
    assert history.segments(dumps, 1, last)[0].first == 5
    assert history.plan(dump_of, 1, last).first == 5

    def nothing(epoch: int) -> bytes:
        raise LogTruncated("gone", 5)

    with pytest.raises(ConfigurationError, match="no entry from 1"):
        history.fetch(nothing, 1, last)


def test_a_step_that_skips_a_stage_does_not_hold(log: Log) -> None:
    """Reads move to replicas that got no writes before: what a missed stage does."""
    problems = []
    for before, after, entry in zip(log.values, log.values[3:], log.entries[2:], strict=False):
        problems += history.proved_step(before, after, entry).problems
    assert any(problem.startswith("PLC-3") for problem in problems)


def test_a_log_that_was_changed_is_not_proved(log: Log) -> None:
    forged = msgspec.structs.replace(log.entries[5], actor="nobody")
    entries: Sequence[LogEntry] = [*log.entries[:5], forged, *log.entries[6:]]
    data = b"".join(dump_file(log.values[0], entries))
    with pytest.raises((CannotApply, CorruptFile)):
        history.fetch(lambda _epoch: data, 1, len(entries))


@pytest.mark.slow
def test_19_spark_runs_seeds_and_proves_the_log_of_a_cluster(
    cluster: LocalCluster, spark: SparkSession, tmp_path: Path
) -> None:
    wanted = sweep.cases(1, 30, QUORUMS, ["read_at_once@17"])
    swept = sweep.run(spark, wanted, Silent(), twice_every=10)
    assert [one.seed for one in swept.failures] == [17]
    assert (swept.seeds, swept.run_twice, swept.not_repeatable) == (30, 3, ())
    assert swept.failures[0].digest == sweep.one_seed(wanted[16]).digest

    client = ClusterClient(cluster.any_admin())
    newest = int(client.status()["epoch"])
    told = history.run(
        spark,
        lambda epoch: b"".join(client.cms_dump(epoch, entries=True)),
        1,
        newest,
        str(tmp_path / "out"),
        Silent(),
    )
    assert (told.first, told.last, told.wrong) == (1, newest, 0) and told.proved == newest
    written = spark.read.parquet(str(tmp_path / "out"))
    assert written.where("size(problems) = 0 AND groups > 0").count() > 0
    assert written.where("summary LIKE '%events%'").count() >= 1


def test_an_interrupt_ends_a_job_without_a_traceback() -> None:
    program = (
        # A shell that starts something in the background has it ignore SIGINT, and all that it starts.
        "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from lockstep.spark.jobs import running\n"
        "plain = running._watch\n"
        "def watch(*given):\n"
        "    print('Spark runs', file=sys.stderr, flush=True); plain(*given)\n"
        "running._watch = watch\n"
        "from lockstep.cli.main import main\n"
        "main(sys.argv[1:])\n"
    )
    command = [sys.executable, "-c", program, "pipeline", "sweep", "--seeds", "500", "--master", "local[1]"]
    job = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
    with job:
        assert job.stderr is not None
        assert any(line == "Spark runs\n" for line in job.stderr)
        time.sleep(1)  # By then it waits for Spark's answer.
        os.killpg(job.pid, signal.SIGINT)
        try:
            _, errors = job.communicate(timeout=60)
        finally:
            if job.poll() is None:
                os.killpg(job.pid, signal.SIGKILL)
    assert job.returncode == 130
    assert "interrupted" in errors and "Traceback" not in errors


def test_an_interrupt_of_a_start_waits_for_its_end_and_a_second_one_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reached, interrupts = [], 0

    def opened(_: SessionSettings) -> None:
        for _number in range(interrupts):
            signal.raise_signal(signal.SIGINT)
        reached.append(interrupts)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Spark takes the signal over.

    monkeypatch.setattr(running, "_opened", opened)
    before = signal.getsignal(signal.SIGINT)
    running.open_session(SessionSettings("a"))
    assert signal.getsignal(signal.SIGINT) is before
    for interrupts in (1, 2):  # noqa: B007 - which `opened` reads
        with pytest.raises(KeyboardInterrupt):
            running.open_session(SessionSettings("a"))
        assert signal.getsignal(signal.SIGINT) is before
    assert reached == [0, 1], "only a second one ends the start itself"
