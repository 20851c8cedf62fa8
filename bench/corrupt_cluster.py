"""The directories that `make corrupt` damages, made by real processes, and its sample at RF 3."""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
from corrupt_cases import KILLED, STOPPED, Case, cases_of, copied, harm
from corrupt_start import Result

from lockstep.testing.clusters import Cluster
from lockstep.testing.conversation import CqlError
from lockstep.testing.nodes import Node, Session
from lockstep.values.errors import LockstepError

ROWS = 240
#: Within this a node that started again has what others kept for it.
HINTS_S = 30.0
_TRIES_MAX = 3
#: Small files of every kind in little time: a snapshot of the metadata after a few entries.
SETTINGS = {"metadata": {"snapshot_every_epochs": 4}}


class Template(msgspec.Struct, frozen=True):
    name: str
    directory: Path


def made_templates(home: Path) -> list[Template]:
    """The third node's directory after a stop in good order, and after a kill while it was written to."""
    with Cluster(3, settings=SETTINGS) as cluster:
        node = cluster.nodes[2]
        with cluster.session() as session:
            fill(session, 0)
        _miss_writes(cluster)
        node.restart()  # What was in memory is in a table file then.
        with cluster.session() as session:
            write(session, ROWS)
        time.sleep(1)  # The store notes its position a fifth of a second behind the writes.
        node.kill()
        templates = [_kept(home, KILLED, node)]
        node.start()
        node.stop()
        templates.append(_kept(home, STOPPED, node))
    return templates


def _miss_writes(cluster: Cluster) -> None:
    """Leave hints on the third node."""
    cluster.nodes[0].kill()
    with cluster.nodes[2].session() as session:
        for i in range(20):
            session.execute("INSERT INTO k.t (p, c, v, w) VALUES (?, ?, ?, ?)", (i, -1, "missed", 1))


def _kept(home: Path, name: str, node: Node) -> Template:
    directory = home / name / "data"
    copied(node.log_path.parent / "data", directory)
    shutil.copyfile(node.log_path.parent / "lockstep.toml", home / "lockstep.toml")
    return Template(name, directory)


def fill(session: Session, first: int) -> None:
    for text in (
        "CREATE KEYSPACE k WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 3}",
        "CREATE TABLE k.t (p int, c int, v text, w int, PRIMARY KEY (p, c))",
        "CREATE INDEX ON k.t (w)",
        "CREATE TABLE k.cas (p int PRIMARY KEY, v int)",
        "CREATE TABLE k.counts (p int PRIMARY KEY, v counter)",
        "CREATE TABLE k.extra (p int PRIMARY KEY)",
    ):
        session.execute(text)
    write(session, first)


def write(session: Session, first: int) -> None:
    for i in range(first, first + ROWS):
        values = (i // 4, i, "x" * 60, i % 5)
        session.execute("INSERT INTO k.t (p, c, v, w) VALUES (?, ?, ?, ?)", values)
        if not i % 8:
            _decided(session, i)
            session.execute("UPDATE k.counts SET v = v + 1 WHERE p = ?", (i,))


def _decided(session: Session, number: int) -> None:
    """One that is not answered in time is asked again: a node has just started, and another is down."""
    for attempt in range(_TRIES_MAX):
        try:
            session.execute("INSERT INTO k.cas (p, v) VALUES (?, ?) IF NOT EXISTS", (number, number))
            return
        except CqlError:
            if attempt == _TRIES_MAX - 1:
                raise


# -- real processes -----------------------------------------------------------------------------------


def real_cases(home: Path, count: int, chance: random.Random) -> Iterator[tuple[Case, Result]]:
    """The third of three nodes starts on its damaged directory, or does not, while the others serve."""
    with Cluster(3, settings=SETTINGS) as cluster:
        node = cluster.nodes[2]
        with cluster.session() as session:
            fill(session, 0)
            node.restart()
            write(session, ROWS)
            # Also brings what was decided while it started again, which a copy lacks without any damage.
            rows = _rows(session, "ALL")
        until_s = time.monotonic() + HINTS_S
        with node.session() as session:
            while _rows(session, "ONE") != rows:
                assert time.monotonic() < until_s, "the third node has not got what it missed"
                time.sleep(0.2)
        node.stop()
        data = node.log_path.parent / "data"
        copied(data, home / "real")
        cases = cases_of("running", home / "real", 4 * count, chance)
        for case in sorted(chance.sample(cases, min(count, len(cases))), key=lambda one: one.path):
            copied(home / "real", data)
            harm(data, case)
            yield case, _started(node, case, rows)
            if node.running:
                node.kill()
        copied(home / "real", data)


def _started(node: Node, case: Case, rows: dict[str, list[object]]) -> Result:
    try:
        node.start()
    except LockstepError as error:
        said = f"{error.message} {' '.join(node.log_tail(5))}"
        named = Path(case.path).name in said
        return Result("refused" if named else "refused, other file named", said[-600:])
    with node.session() as session:
        for level in ("ONE", "QUORUM"):
            found = _rows(session, level)
            if found != rows:
                return Result("SILENT", f"{level}: {[len(one) for one in found.values()]} rows")
    log = "".join(node.log_tail(400))
    return Result("damaged range" if "storage.table_file_damaged" in log else "whole")


def _rows(session: Session, level: str) -> dict[str, list[object]]:
    return {
        table: sorted(tuple(row) for row in session.execute(f"SELECT * FROM k.{table}", consistency=level))
        for table in ("t", "cas", "counts")
    }
