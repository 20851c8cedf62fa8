"""Checking table files whole: every block of data, of the index and of the properties against its checksum.

A file is linked into a database of its own, which the library is told to repair: it reads all of the file,
and puts it aside when something is wrong with it. A filter is not checked: one that cannot be read saves no
reads, and nothing else.

Invariant: the store's own files are only read, and what a check makes is gone when it ends.
"""

from __future__ import annotations

import os
import shutil
from typing import Any, Final

import msgspec

from lockstep.storage.rocks_errors import file_error
from lockstep.values.codec import decoder, encode
from lockstep.values.errors import TableFileDamaged

TABLE_SUFFIX: Final = ".sst"
#: Below the store's directory, where no name of the library's begins so.
SCRATCH: Final = "scrub"
#: Where the library puts a file that it cannot read.
_PUT_ASIDE: Final = "lost"
_LOG: Final = "LOG"


class CheckOrder(msgspec.Struct, frozen=True, array_like=True, tag="check"):
    """Check the file `name` of the store in `directory`."""

    directory: str
    name: str


class CheckAnswer(msgspec.Struct, frozen=True, array_like=True):
    """`why` is empty for a file that is whole, or that the store has no more."""

    why: str = ""


_ANSWER = decoder(CheckAnswer)


def checked(order: CheckOrder) -> bytes:
    """Carry an order out, in a process or thread that has time for it."""
    return encode(CheckAnswer(damage_in(order.directory, order.name)))


def why_of(answer: bytes) -> str:
    return _ANSWER.decode(answer).why


def damage_in(directory: str, name: str) -> str:
    """Why a table file is not whole, as the library says; empty when it is, or when there is no such file."""
    import rocksdict

    scratch = os.path.join(directory, f"{SCRATCH}-{name}")
    shutil.rmtree(scratch, ignore_errors=True)
    os.makedirs(scratch)
    try:
        try:
            os.link(os.path.join(directory, name), os.path.join(scratch, name))
        except FileNotFoundError:
            # It was merged into others meanwhile, and all of it was read for that.
            return ""
        try:
            rocksdict.Rdict.repair(scratch, rocksdict.Options(raw_mode=True))
        except Exception as error:
            return str(error)
        if os.path.exists(os.path.join(scratch, _PUT_ASIDE, name)):
            return _said_of_damage(os.path.join(scratch, _LOG))
        return ""
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _said_of_damage(log: str) -> str:
    """The first line of the library's log that speaks of it."""
    with open(log, errors="replace") as lines:
        for line in lines:
            at = line.find("Corruption: ")
            if at >= 0:
                return line[at:].strip()
    return "Corruption: the file cannot be read as a table"


def first_damaged(directory: str) -> TableFileDamaged | None:
    """The first damaged table file in a store's directory, when the library does not say which one it is."""
    for name in sorted(os.listdir(directory)):
        if name.endswith(TABLE_SUFFIX):
            why = damage_in(directory, name)
            if why:
                return damaged_file(directory, name, why)
    return None


def damaged_file(directory: str, name: str, why: str, live_files: Any = ()) -> TableFileDamaged:
    """The error of a file that a check found damaged."""
    found = file_error(directory, f"Corruption: {why} {directory}/{name}", live_files)
    assert found is not None, "the text names a table file"
    found.why = why
    return found
