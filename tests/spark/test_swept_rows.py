"""Rows of a sweep in its file, and processes that end while seeds run."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import pytest
from pyspark.sql import SparkSession

from lockstep.spark.jobs import sweep, swept_rows
from lockstep.spark.jobs.running import Silent
from lockstep.spark.jobs.sweep import QUORUMS
from lockstep.spark.jobs.swept_rows import Case, Kept, Swept
from lockstep.values.errors import ConfigurationError, LockstepError


def row(seed: int, violation: str = "") -> Swept:
    return Swept("a", seed, f"d{seed}", "x" if violation else "", violation, 3, 0.5, 7)


def test_rows_are_there_again_but_for_a_torn_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "rows"
    assert Kept(path).rows == []
    kept = Kept(path)
    kept.add([row(1), row(2, "of\ntwo lines")], again=False)
    kept.add([row(1)], again=True)
    data = path.read_bytes()
    for cut in range(1, 9):
        path.write_bytes(data + data[:cut])
        assert Kept(path).rows == [(row(1), False), (row(2, "of\ntwo lines"), False), (row(1), True)]
        assert path.read_bytes() == data
    monkeypatch.setattr(swept_rows, "sources_digest", lambda: "others")
    other = Kept(path)
    assert other.rows == []
    other.add([row(9)], again=False)
    assert path.read_bytes().startswith(data) and Kept(path).rows == [(row(9), False)]
    path.write_bytes(b"something else\n")
    with pytest.raises(ConfigurationError, match="line 1"):
        Kept(path)
    with pytest.raises(ConfigurationError, match="written"):
        Kept(tmp_path / "nowhere" / "rows").add([row(1)], again=False)


class Scripted:
    """In place of Spark: tasks run here, and all are lost with one whose seeds end their process."""

    def __init__(self, ends: Callable[[Case], bool]) -> None:
        self.ends = ends
        self.ran: list[int] = []
        self.tries = 0

    @property
    def sparkContext(self) -> Scripted:
        return self

    @property
    def defaultParallelism(self) -> int:
        return 1

    def spread(self, session: object, parts: Sequence[Sequence[Case]], work: Callable) -> list:  # type: ignore[type-arg]
        if parts == [(0,)]:
            return [0]
        self.tries += 1
        if any(self.ends(one) for part in parts for one in part):
            raise LockstepError("Spark gave the job up: Python worker exited unexpectedly")
        found = [row(one.seed) for part in parts for one in part]
        self.ran += [one.seed for one in found]
        return found


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[Case], bool]], Scripted]:
    def made(ends: Callable[[Case], bool]) -> Scripted:
        session = Scripted(ends)
        monkeypatch.setattr(sweep, "spread", session.spread)
        return session

    class Unwatched:
        def __init__(self, *_: object) -> None: ...

        def __enter__(self) -> None: ...

        def __exit__(self, *_: object) -> None: ...

    monkeypatch.setattr(sweep, "watched", Unwatched)
    return made


def test_a_seed_that_ends_its_process_is_a_row_and_costs_no_other_one(
    scripted: Callable[[Callable[[Case], bool]], Scripted], tmp_path: Path
) -> None:
    session = scripted(lambda case: case.seed in (7, 40))
    wanted = [Case("a", seed) for seed in range(100)]
    report = sweep.run(session, wanted, Silent(), twice_every=0, report=str(tmp_path / "rows"))  # type: ignore[arg-type]
    assert [(one.seed, one.invariant) for one in report.failures] == [(7, "PROCESS"), (40, "PROCESS")]
    assert sorted(session.ran) == [seed for seed in range(100) if seed not in (7, 40)]
    assert report.seeds == 100 and report.repeated_tasks and session.tries < 80


def test_a_killed_sweep_goes_on_from_its_report(
    scripted: Callable[[Callable[[Case], bool]], Scripted], tmp_path: Path
) -> None:
    wanted = [Case("a", seed) for seed in range(400)]
    path = str(tmp_path / "rows")
    session = scripted(lambda case: False)
    spread = session.spread

    def killed(*given: object) -> list:  # type: ignore[type-arg]
        if len(session.ran) > 150:
            raise KeyboardInterrupt
        return spread(*given)  # type: ignore[arg-type]

    session.spread = killed  # type: ignore[method-assign]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sweep, "spread", killed)
        with pytest.raises(KeyboardInterrupt):
            sweep.run(session, wanted, Silent(), twice_every=10, report=path)  # type: ignore[arg-type]
    before = list(session.ran)
    again = scripted(lambda case: False)
    report = sweep.run(again, wanted, Silent(), twice_every=10, report=path)  # type: ignore[arg-type]
    assert (report.seeds, report.run_twice, report.resumed) == (400, 40, len(before))
    assert sorted(before + again.ran) == sorted([*range(400), *range(0, 400, 10)])
    once_more = scripted(lambda case: False)
    last = sweep.run(once_more, wanted, Silent(), twice_every=10, report=path)  # type: ignore[arg-type]
    assert not once_more.ran and last.resumed == 440 and not last.not_repeatable


def test_without_a_session_no_seed_is_blamed(scripted: Callable[[Callable[[Case], bool]], Scripted]) -> None:
    session = scripted(lambda case: True)

    def gone(*_: object) -> list:  # type: ignore[type-arg]
        raise LockstepError("Spark gave the job up: stopped SparkContext")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sweep, "spread", gone)
        with pytest.raises(LockstepError, match="stopped"):
            sweep.run(session, [Case("a", 1)], Silent())  # type: ignore[arg-type]


@pytest.mark.slow
def test_a_killed_executor_costs_its_wave_alone(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark gives a local job up with the first process that ends; the wave is run again."""
    mark = str(tmp_path / "killed")
    wanted = sweep.cases(1, 12, QUORUMS)
    right = sweep.swept

    def once_killed(part: Sequence[Case]) -> list[Swept]:
        if any(one.seed == 9 for one in part):
            try:
                os.close(os.open(mark, os.O_CREAT | os.O_EXCL))
                os.kill(os.getpid(), signal.SIGKILL)
            except FileExistsError:
                pass
        return right(part)

    monkeypatch.setattr(sweep, "swept", once_killed)
    report = sweep.run(spark, wanted, Silent(), twice_every=0, report=str(tmp_path / "rows"))
    assert (report.seeds, report.failed) == (12, 0) and report.repeated_tasks
    lines = (tmp_path / "rows").read_bytes().splitlines()
    assert sorted(msgspec.json.decode(line)["row"]["seed"] for line in lines) == list(range(1, 13))
