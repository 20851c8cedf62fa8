"""The load process against a stand-in for the driver that loses, changes and refuses rows on purpose."""

from __future__ import annotations

import csv
import multiprocessing
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lockstep.local import demo_traffic
from lockstep.local.demo_input import Column, Row, Table
from lockstep.local.demo_messages import (
    Command,
    Connect,
    Counts,
    Failed,
    Finished,
    Load,
    ReadBack,
    StartTraffic,
    StopTraffic,
)
from lockstep.local.demo_traffic import ObservedRetryPolicy, Tally, percentile

TABLE = Table("t", (Column("k", "bigint"), Column("v", "text")), (0,), ())
ROWS: list[Row] = [(number, f"v{number}") for number in range(300)]


class Store:
    """Statements and session in one: rows by (statement, key), answered at once on the same thread."""

    def __init__(self) -> None:
        self.insert_row, self.select_row = "insert_row", "select_row"
        self.insert_traffic, self.select_traffic = "insert_traffic", "select_traffic"
        self.insert_hot, self.select_hot = "insert_hot", "select_hot"
        self.described = "a stand-in"
        self.session = self
        self.rows: dict[tuple[str, Any], Row] = {}
        self.refuse: Callable[[str, Row], bool] = lambda _statement, _values: False

    def execute_async(self, statement: str, values: Row) -> Any:
        kind = statement.partition("_")[2]
        found: list[Row] = []
        error = RuntimeError("no quorum") if self.refuse(statement, values) else None
        if error is None and statement == "insert_row":
            self.rows[kind, values[:1]] = values
        elif error is None and statement == "insert_traffic":
            self.rows[kind, values[:2]] = values[2:]
        elif error is None and statement == "insert_hot":
            self.rows[kind, values[:1]] = values[1:]
        elif error is None and (kind, values) in self.rows:
            found = [self.rows[kind, values]]

        def add_callbacks(succeeded: Callable[[Any], None], failed: Callable[[Exception], None]) -> None:
            if error is not None:
                failed(error)
            else:
                succeeded(found)

        return SimpleNamespace(add_callbacks=add_callbacks)


class Asked:
    """The demo's side of a load process that runs on a thread of this test."""

    def __init__(self, store: Store, samples: Path) -> None:
        self.store = store
        self._ours, theirs = multiprocessing.Pipe()
        process = demo_traffic.LoadProcess(theirs, connect=lambda _asked, _tally: store)  # type: ignore[arg-type, return-value]
        self._thread = threading.Thread(target=self._run, args=(process,))
        self._thread.start()
        self(Connect(("127.0.0.1",), 9042, 3, TABLE, str(samples)))

    @staticmethod
    def _run(process: demo_traffic.LoadProcess) -> None:
        with pytest.raises(EOFError):
            process.run()

    def __call__(self, command: Command) -> Counts:
        self._ours.send(command)
        while True:
            assert self._ours.poll(20)
            said = self._ours.recv()
            assert not isinstance(said, Failed)
            if isinstance(said, Finished):
                return said.counts

    def traffic_until(self, writes: int) -> Counts:
        self(StartTraffic(4000))
        while len([key for kind, key in list(self.store.rows) if kind in ("traffic", "hot")]) < writes:
            assert self._ours.poll(20)
            self._ours.recv()
        return self(StopTraffic())

    def close(self) -> None:
        self._ours.close()
        self._thread.join()


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Asked]:
    monkeypatch.setattr(demo_traffic, "ROUND_PAUSE_S", 0.0)
    made = Asked(Store(), tmp_path / "samples.csv")
    yield made
    made.close()


def test_everything_that_was_acknowledged_is_read_back(asked: Asked, tmp_path: Path) -> None:
    assert asked(Load(ROWS)).loaded == len(ROWS)
    counts = asked.traffic_until(writes=50)
    assert counts.writes_acknowledged == counts.writes_attempted >= 50
    assert counts.reads > 0
    after = asked(ReadBack())
    assert after.read_back == len(ROWS) + counts.writes_acknowledged
    assert (after.lost, after.unreadable, after.wrong_reads, after.client_errors) == (0, 0, 0, 0)
    with (tmp_path / "samples.csv").open(newline="") as file:
        samples = list(csv.DictReader(file))
    assert len(samples) == counts.writes_acknowledged + counts.reads
    assert {sample["operation"] for sample in samples} == {"write", "read"}


def test_a_lost_row_and_a_changed_row_are_found(asked: Asked) -> None:
    asked(Load(ROWS))
    asked.traffic_until(writes=10)
    del asked.store.rows["row", (7,)]
    asked.store.rows["row", (8,)] = (8, "other")
    asked.store.rows["traffic", (3, 3)] = ("other",)
    del asked.store.rows["hot", (4,)]
    counts = asked(ReadBack())
    assert counts.lost == 4
    assert counts.errors["lost"] == 4
    assert "v7" in counts.examples["lost"]


def test_a_row_that_cannot_be_read_is_neither_lost_nor_read_back(asked: Asked) -> None:
    asked(Load(ROWS))
    asked.store.refuse = lambda _statement, values: values[0] == 5
    counts = asked(ReadBack())
    assert (counts.read_back, counts.lost, counts.unreadable) == (len(ROWS) - 1, 0, 1)
    assert counts.client_errors == demo_traffic.ROUNDS_MAX


def test_a_row_that_was_never_acknowledged_is_not_asked_for(asked: Asked) -> None:
    asked.store.refuse = lambda statement, values: statement == "insert_row" and values[0] == 5
    assert asked(Load(ROWS)).loaded == len(ROWS) - 1
    counts = asked(ReadBack())
    assert (counts.read_back, counts.lost) == (len(ROWS) - 1, 0)


def test_a_load_that_fails_at_first_is_tried_again_and_counted(asked: Asked) -> None:
    seen: dict[Row, int] = {}

    def first_time(_statement: str, values: Row) -> bool:
        seen[values] = seen.get(values, 0) + 1
        return seen[values] == 1 and values[0] == 5

    asked.store.refuse = first_time
    counts = asked(Load(ROWS))
    assert (counts.loaded, counts.client_errors) == (len(ROWS), 1)


def test_writes_that_fail_are_attempted_but_not_acknowledged(asked: Asked) -> None:
    asked.store.refuse = lambda statement, _values: statement == "insert_hot"
    counts = asked.traffic_until(writes=10)
    assert (counts.hot_attempted, counts.hot_acknowledged) == (counts.client_errors, 0)
    assert counts.writes_acknowledged == counts.writes_attempted // 2
    assert counts.client_errors == counts.writes_attempted - counts.writes_acknowledged
    assert counts.errors["write: RuntimeError"] == counts.client_errors


def test_a_read_that_misses_an_acknowledged_write_is_wrong(asked: Asked) -> None:
    asked(Load(ROWS[:1]))
    del asked.store.rows["row", (0,)]
    asked.store.refuse = lambda statement, _values: statement in ("insert_traffic", "insert_hot")
    asked(StartTraffic(1000))
    counts = Counts()
    for _ in range(10_000):
        if (counts := asked(Load([]))).wrong_reads >= 3:
            break
    asked(StopTraffic())
    assert counts.wrong_reads >= 3 and counts.writes_acknowledged == 0


def test_the_retry_policy_decides_as_the_driver_s_own_and_counts() -> None:
    from cassandra import ConsistencyLevel, WriteType
    from cassandra.policies import RetryPolicy

    tally = Tally()
    observed, own = ObservedRetryPolicy(tally), RetryPolicy()
    for retry in (0, 1):
        facts = (None, ConsistencyLevel.QUORUM, 2, 2, False, retry)
        assert observed.on_read_timeout(*facts) == own.on_read_timeout(*facts)
        facts = (None, ConsistencyLevel.QUORUM, WriteType.SIMPLE, 2, 1, retry)
        assert observed.on_write_timeout(*facts) == own.on_write_timeout(*facts)
        unavailable = (None, ConsistencyLevel.QUORUM, 2, 1, retry)
        assert observed.on_unavailable(*unavailable) == own.on_unavailable(*unavailable)
        broken = (None, ConsistencyLevel.QUORUM, OSError("gone"), retry)
        assert observed.on_request_error(*broken) == own.on_request_error(*broken)
    assert tally.counts.raw_errors == 8
    assert tally.counts.errors["raw: OSError"] == 2


def test_percentiles_are_values_that_occurred() -> None:
    assert percentile([], 0.99) == 0.0
    assert percentile([5.0], 0.5) == 5.0
    hundred = [float(number) for number in range(1, 101)]
    assert (percentile(hundred, 0.5), percentile(hundred, 0.99)) == (50.0, 99.0)
