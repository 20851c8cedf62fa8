"""What is done to which file: the cases of `make corrupt`, and doing one to a copy of a directory."""

from __future__ import annotations

import os
import random
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import msgspec

FLIPPED, CUT, EMPTIED, REMOVED = "bit flipped", "cut short", "emptied", "removed"
#: Files of at most so many bytes have every bit flipped once, as far as the number of cases allows.
SMALL_BYTES = 256
#: Never changed after they are written, so a copy may be a link.
LINKED = ".sst"
KILLED, STOPPED = "killed", "stopped"
#: Journals that a crash cuts short: after a kill nothing tells damage at their end from that.
JOURNALS = ("identity", "raft/", "metadata/")
#: The management group takes back who has lost its log as it takes a newcomer.
TAKEN_BACK = "raft/group-2"
#: What is held by the process.
LEFT_OUT = ("lock", "store/LOCK")


class Case(msgspec.Struct, frozen=True):
    """`at`: the bit that is flipped, or how many bytes are left."""

    template: str
    path: str
    harm: str
    at: int = 0

    def described(self) -> str:
        where = {FLIPPED: f" {self.at % 8} of byte {self.at // 8}", CUT: f" to {self.at} bytes"}
        return f"{self.template} node, {self.path}, {self.harm}{where.get(self.harm, '')}"


def kind_of(path: str) -> str:
    """The path without numbers: files of one kind are counted together."""
    return re.sub(r"\d+", "N", path)


def files_of(directory: Path) -> list[tuple[str, int]]:
    """(path, bytes) of every file, sorted."""
    found = []
    for path in sorted(directory.rglob("*")):
        name = path.relative_to(directory).as_posix()
        if path.is_file() and name not in LEFT_OUT:
            found.append((name, path.stat().st_size))
    return found


def cases_of(template: str, directory: Path, count: int, chance: random.Random) -> list[Case]:
    """About `count` cases: each file removed and emptied, cut at some places, and its bits flipped."""
    files = files_of(directory)
    cases: list[Case] = []
    for path, size in files:
        if template == KILLED and path == TAKEN_BACK:
            continue
        cases.append(Case(template, path, REMOVED))
        if size:
            cases.append(Case(template, path, EMPTIED))
            ends = {size - 1, size // 2, size * 9 // 10, *(chance.randrange(size) for _ in range(20))} - {0}
            if template != KILLED or not path.startswith(JOURNALS):
                cases.extend(Case(template, path, CUT, end) for end in sorted(ends))
    for path, share in _shares(files, max(0, count - len(cases)), chance):
        cases.extend(Case(template, path, FLIPPED, bit) for bit in share)
    return cases


def _shares(
    files: list[tuple[str, int]], count: int, chance: random.Random
) -> Iterator[tuple[str, list[int]]]:
    """Which bits of each file: all of the smallest files, what is left divided among the larger ones."""
    left = count
    ordered = sorted((size, path) for path, size in files if size)
    for number, (size, path) in enumerate(ordered):
        share = left // (len(ordered) - number)
        wanted = min(8 * size, share)
        left -= wanted
        yield path, sorted(chance.sample(range(8 * size), wanted))


def copied(template: Path, to: Path) -> None:
    """A copy that nothing done to it changes the template; files that no start changes are linked."""
    shutil.rmtree(to, ignore_errors=True)
    for path in template.rglob("*"):
        target = to / path.relative_to(template)
        if path.is_dir():
            target.mkdir(parents=True, exist_ok=True)
        elif path.relative_to(template).as_posix() not in LEFT_OUT:
            target.parent.mkdir(parents=True, exist_ok=True)
            if path.suffix == LINKED:
                os.link(path, target)
            else:
                shutil.copyfile(path, target)


def harm(directory: Path, case: Case) -> None:
    """Do it to a copy."""
    path = directory / case.path
    content = bytearray(path.read_bytes())
    path.unlink()
    if case.harm == FLIPPED:
        content[case.at // 8] ^= 1 << (case.at % 8)
        path.write_bytes(content)
    elif case.harm == CUT:
        path.write_bytes(content[: case.at])
    elif case.harm == EMPTIED:
        path.write_bytes(b"")
