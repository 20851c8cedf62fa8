"""Checking one table file of RocksDB whole: data, index and properties by their checksums.

The file is linked into a directory of its own, which the library is told to repair: it reads all of the file,
and puts it aside when something is wrong with it. A filter is not checked: one that cannot be read saves no
reads, and nothing else.

Invariant: the store's own files are only read, and what a check makes is gone when it ends.
"""

from __future__ import annotations

import os
import shutil
from typing import Final

from lockstep.values.codec import decoder, encode

#: What a helper process is started with.
CHECK_HANDLER: Final = "lockstep.runtime.real.table_check:check"
CHECK_PACKAGES: Final = ("rocksdict",)
#: Where the library puts a file that it cannot read.
_PUT_ASIDE: Final = "lost"
_QUESTION = decoder(tuple[str, str])


def check(question: bytes) -> bytes:
    """(directory, name) of a file -> why it is not whole; empty when it is, or is not there any more."""
    return encode(damage_in(*_QUESTION.decode(question)))


def damage_in(directory: str, name: str) -> str:
    """Why a table file is not whole, as the library says; empty when it is, or when there is no such file."""
    import rocksdict

    scratch = os.path.join(directory, f"check-{name}")
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
            return _said_of_damage(os.path.join(scratch, "LOG"))
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
