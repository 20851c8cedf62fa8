"""Owns what the load process does: load rows, keep writers and readers going, read everything back.

Invariants: a write counts as acknowledged only when the driver said so; every acknowledged write is read
back by its key at QUORUM and compared; the value of a traffic row follows from its number, so nothing about
it has to be remembered but that it was acknowledged.
"""

from __future__ import annotations

import hashlib
import random
import signal
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

from lockstep.local.demo_driver import REQUEST_TIMEOUT_S, Lane, Statements
from lockstep.local.demo_messages import (
    ERROR,
    OK,
    READ,
    REPORT_INTERVAL_S,
    TRAFFIC_SLOTS,
    WRITE,
    WRONG,
    Command,
    Connect,
    Failed,
    Finished,
    Load,
    ReadBack,
    StartTraffic,
    StopTraffic,
)
from lockstep.local.demo_table import Row
from lockstep.local.demo_tally import Tally
from lockstep.values.errors import LockstepError

#: Requests in flight while loading or reading back: enough to keep three nodes busy, far below their limits.
BULK_WIDTH: Final = 96
#: Requests in flight of the traffic; at a rate that two cores bear, some tens are.
TRAFFIC_WIDTH: Final = 128
#: How often a row that was not loaded or not read back is tried again.
ROUNDS_MAX: Final = 4
ROUND_PAUSE_S: Final = 0.5
#: Pause of the pacing loop: at the default rate it starts a few requests a turn.
PACE_S: Final = 0.005
#: Requests that a late pacing loop may catch up at once; the rest of the backlog is dropped, not sent.
BURST_MAX: Final = 32
#: Half of the reads look at one of the last so many acknowledged writes, where a loss would show first.
FRESH_MAX: Final = 500
#: The same choices of rows in every run.
READER_SEED: Final = 20


def value_of(seq: int) -> str:
    """What traffic row `seq` holds."""
    return hashlib.blake2b(seq.to_bytes(8, "big"), digest_size=48).hexdigest()


class Traffic:
    """Writers and readers at a bounded rate, on a thread that only starts requests."""

    def __init__(self, statements: Statements, rows: Sequence[tuple[Row, Row]], tally: Tally) -> None:
        self._statements = statements
        self._rows = rows
        self._tally = tally
        self._lane = Lane(statements.session, TRAFFIC_WIDTH)
        self._random = random.Random(READER_SEED)
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._next_seq = 0
        self.acknowledged: list[int] = []

    @property
    def running(self) -> bool:
        return self._thread is not None

    def start(self, ops_per_s: int) -> None:
        self._tally.keep_samples(True)
        self._thread = threading.Thread(target=self._pace, args=(ops_per_s,), name="pace", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Start nothing more, and wait for what is in flight."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if not self._lane.drain(2 * REQUEST_TIMEOUT_S):
            self._tally.remember("unfinished", "requests in flight did not end in time")
        self._tally.keep_samples(False)

    def _pace(self, ops_per_s: int) -> None:
        begin, started = time.monotonic(), 0
        while not self._stop.wait(PACE_S):
            due = int((time.monotonic() - begin) * ops_per_s) - started
            started += max(0, due - BURST_MAX)
            for _ in range(min(due, BURST_MAX)):
                started += 1
                if not (self._write() if started % 2 else self._read()):
                    break

    def _write(self) -> bool:
        seq = self._next_seq
        values = (seq % TRAFFIC_SLOTS, seq, value_of(seq))

        def done(started_s: float, _rows: Any, error: BaseException | None) -> None:
            if error is None:
                self.acknowledged.append(seq)
                self._tally.add(writes_acknowledged=1)
                self._tally.ended(WRITE, started_s, OK)
            else:
                self._tally.remember(f"write: {type(error).__name__}", error)
                self._tally.ended(WRITE, started_s, ERROR)

        if not self._lane.submit(self._statements.insert_traffic, values, done, wait=False):
            return False
        self._next_seq += 1
        self._tally.add(writes_attempted=1)
        return True

    def _read(self) -> bool:
        known = len(self.acknowledged)
        if known and (not self._rows or self._random.random() < 0.75):
            oldest = 0 if self._random.random() < 0.33 else max(0, known - FRESH_MAX)
            seq = self.acknowledged[self._random.randrange(oldest, known)]
            return self._look(self._statements.select_traffic, (seq % TRAFFIC_SLOTS, seq), (value_of(seq),))
        if not self._rows:
            return True
        key, row = self._rows[self._random.randrange(len(self._rows))]
        return self._look(self._statements.select_row, key, row)

    def _look(self, statement: Any, key: Row, expected: Row) -> bool:
        def done(started_s: float, rows: Any, error: BaseException | None) -> None:
            self._tally.add(reads=1)
            if error is not None:
                self._tally.remember(f"read: {type(error).__name__}", error)
                self._tally.ended(READ, started_s, ERROR)
            elif [tuple(row) for row in rows] != [expected]:
                self._tally.remember("wrong read", f"key {key}: {_shown(rows)}")
                self._tally.ended(READ, started_s, WRONG)
            else:
                self._tally.ended(READ, started_s, OK)

        return self._lane.submit(statement, key, done, wait=False)


class LoadProcess:
    """The body of the load process: one command after another, with reports in between."""

    def __init__(
        self, connection: Connection, connect: Callable[[Connect, Tally], Statements] = Statements
    ) -> None:
        self._connection = connection
        self._connect = connect
        self._tally = Tally()
        self._reported_s = 0.0
        self._rows: list[tuple[Row, Row]] = []
        self._statements: Statements
        self._traffic: Traffic
        self._asked: Connect

    def run(self) -> None:
        """Until the other side closes the connection."""
        while True:
            if self._connection.poll(REPORT_INTERVAL_S):
                begin = time.monotonic()
                note = self._do(self._connection.recv())
                self._connection.send(Finished(self._tally.copy(), time.monotonic() - begin, note))
            else:
                self._report()

    def _do(self, command: Command) -> str:
        if isinstance(command, Connect):
            self._asked = command
            self._statements = self._connect(command, self._tally)
            self._traffic = Traffic(self._statements, self._rows, self._tally)
            return self._statements.described
        if isinstance(command, Load):
            return self._load(command.rows)
        if isinstance(command, StartTraffic):
            self._traffic.start(command.ops_per_s)
            return ""
        if isinstance(command, StopTraffic):
            self._traffic.stop()
            return f"{self._tally.write_samples(Path(self._asked.samples_path))} samples"
        assert isinstance(command, ReadBack)
        return self._read_back()

    def _load(self, rows: Sequence[Row]) -> str:
        statement = self._statements.insert_row

        def outcome(row: Row, _rows: Any, error: BaseException | None) -> bool:
            if error is not None:
                self._tally.remember(f"load: {type(error).__name__}", error)
                return False
            self._tally.add(loaded=1)
            return True

        left = self._bulk([(row, row) for row in rows], statement, outcome, WRITE)
        table, missing = self._asked.table, {row for _, row in left}
        self._rows.extend((table.key_of(row), row) for row in rows if row not in missing)
        return f"{len(left)} rows could not be loaded" if left else ""

    def _read_back(self) -> str:
        def outcome(expected: Row, rows: Any, error: BaseException | None) -> bool:
            if error is not None:
                self._tally.remember(f"read back: {type(error).__name__}", error)
                return False
            self._tally.add(read_back=1)
            if [tuple(row) for row in rows] != [expected]:
                self._tally.add(lost=1)
                self._tally.remember("lost", f"{expected}: {_shown(rows)}")
            return True

        total = len(self._rows) + len(self._traffic.acknowledged)
        left = self._bulk(self._rows, self._statements.select_row, outcome, READ, total)
        written = [((seq % TRAFFIC_SLOTS, seq), (value_of(seq),)) for seq in self._traffic.acknowledged]
        left += self._bulk(
            written, self._statements.select_traffic, outcome, READ, total, before=len(self._rows)
        )
        self._tally.add(unreadable=len(left))
        return ""

    def _bulk(
        self,
        work: Iterable[tuple[Row, Row]],
        statement: Any,
        outcome: Callable[[Row, Any, BaseException | None], bool],
        operation: str,
        total: int = 0,
        before: int = 0,
    ) -> list[tuple[Row, Row]]:
        """Run `statement` for each (values, row), failures again some times; returns those that never worked.

        A failure also counts as a client error, as it does in the traffic.
        """
        pending = list(work)
        total = total or len(pending)
        for attempt in range(ROUNDS_MAX):
            if attempt:
                time.sleep(ROUND_PAUSE_S * attempt)
            pending = self._round(pending, statement, outcome, operation, before, total)
            if not pending:
                break
        return pending

    def _round(
        self,
        pending: Sequence[tuple[Row, Row]],
        statement: Any,
        outcome: Callable[[Row, Any, BaseException | None], bool],
        operation: str,
        before: int,
        total: int,
    ) -> list[tuple[Row, Row]]:
        failed: list[tuple[Row, Row]] = []
        lane = Lane(self._statements.session, BULK_WIDTH)

        def done(item: tuple[Row, Row], started_s: float, rows: Any, error: BaseException | None) -> None:
            good = outcome(item[1], rows, error)
            self._tally.ended(operation, started_s, OK if good else ERROR)
            if not good:
                failed.append(item)

        for number, item in enumerate(pending):
            lane.submit(statement, item[0], partial(done, item))
            if not number % 64:
                self._report(before + number, total)
        if not lane.drain(2 * REQUEST_TIMEOUT_S):
            raise LockstepError(f"requests did not end within {2 * REQUEST_TIMEOUT_S:g} s")
        return failed

    def _report(self, done: int = 0, total: int = 0) -> None:
        now = time.monotonic()
        if now - self._reported_s >= REPORT_INTERVAL_S:
            self._reported_s = now
            self._connection.send(self._tally.report(done, total))


def main(connection: Connection) -> None:
    """Entry of the load process; ends when the other side goes away, however that happens."""
    # An interrupt from the terminal reaches all processes; the demo itself decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        LoadProcess(connection).run()
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return
    except Exception as error:
        connection.send(Failed(f"{type(error).__name__}: {error}"))


def _shown(rows: Any) -> str:
    return f"found {[tuple(row) for row in rows]}"[:200]
