"""What seeds gave, as lines of a file that grows while they run.

Invariant: a row that was added is in the file, and on the disk, before more is run; a line that was not
written whole is none. Rows of other sources are left where they are and count for nothing.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import msgspec

import lockstep
from lockstep.values.errors import ConfigurationError

SCHEMA: Final = "sweep-seed/1"
_DIGEST_BYTES: Final = 16


class Case(msgspec.Struct, frozen=True):
    """One seed. `scenario` is one of the simulator, or QUORUMS; `plant` a bug that is planted for it
    alone."""

    scenario: str
    seed: int
    plant: str = ""


class Swept(msgspec.Struct, frozen=True):
    """`violation` is empty where everything held; `cpu_s` differs from run to run, nothing else does."""

    scenario: str
    seed: int
    digest: str
    invariant: str
    violation: str
    events: int
    cpu_s: float
    process: int
    plant: str = ""


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the file. `sources`: digest of those that ran it; `again`: it is a second run of a seed."""

    schema: str = SCHEMA
    sources: str
    again: bool
    row: Swept


class Kept:
    """The file: `rows` are (row, whether of a second run) that it had at the start, of these sources."""

    def __init__(self, path: Path) -> None:
        """ConfigurationError when the file is something else."""
        self._path = path
        self._sources = sources_digest()
        self.rows: list[tuple[Swept, bool]] = []
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return
        except OSError as error:
            raise ConfigurationError(f"the report {path} cannot be read: {error}") from error
        whole, _, torn = data.rpartition(b"\n")
        for number, text in enumerate(whole.splitlines(), start=1):
            try:
                line = msgspec.json.decode(text, type=Line)
            except msgspec.MsgspecError:
                raise ConfigurationError(f"line {number} of {path} is not that of a sweep") from None
            if line.sources == self._sources:
                self.rows.append((line.row, line.again))
        if torn:
            os.truncate(path, len(data) - len(torn))

    def add(self, rows: Iterable[Swept], *, again: bool) -> None:
        lines = [Line(sources=self._sources, again=again, row=row) for row in rows]
        try:
            with self._path.open("ab") as file:
                file.write(b"".join(msgspec.json.encode(line) + b"\n" for line in lines))
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise ConfigurationError(f"the report {self._path} cannot be written: {error}") from error


def sources_digest() -> str:
    """Of the package that runs: what a seed gives is a matter of these."""
    root = Path(lockstep.__file__).parent
    digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    for path in sorted(root.rglob("*.py")):
        digest.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()
