"""Directories that one job at a time writes to, and what becomes part of them whole.

Invariants: while one job has claimed a directory, another one is refused; the claim ends with its process,
however it ends. What a job writes lies in a directory of that attempt, whose name readers of files leave out,
and gets its own name when it is whole: so tasks of an attempt that was killed, and may go on for a while,
change nothing of what a later attempt writes.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from lockstep.values.errors import ConfigurationError, PreconditionError

#: Of a directory that an attempt writes; readers of files leave out what begins so.
_WRITING: Final = "_writing-"


@contextlib.contextmanager
def claimed(place: Path) -> Iterator[None]:
    """The directory, which is made, for this job alone. ConfigurationError where it cannot be made,
    PreconditionError while another job has it."""
    try:
        place.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise ConfigurationError(f"{place} cannot be made: {error.strerror}") from error
    try:
        # File systems of networks may lock no directories: names of attempts differ all the same.
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if isinstance(error, BlockingIOError):
                raise PreconditionError(
                    f"another job is writing to {place}", hint="wait for its end, or name another directory"
                ) from None
        yield
    finally:
        os.close(descriptor)


def attempt_in(place: Path) -> Path:
    """A name for what this attempt writes, beside nothing that earlier ones left."""
    for left in place.glob(f"{_WRITING}*"):
        shutil.rmtree(left, ignore_errors=True)
    return place / f"{_WRITING}{uuid.uuid4().hex}"


@contextlib.contextmanager
def given_up(attempt: Path) -> Iterator[None]:
    """What the attempt wrote goes when it fails."""
    try:
        yield
    except BaseException:
        shutil.rmtree(attempt, ignore_errors=True)
        raise


def made_whole(attempt: Path, target: Path) -> None:
    """What was written gets its name, in place of what had it. PreconditionError when it is gone."""
    try:
        if target.exists():
            shutil.rmtree(target)
        attempt.rename(target)
    except OSError as error:
        raise PreconditionError(
            f"{attempt} cannot be named {target.name}: {error.strerror}",
            hint="another job wrote there as well: run it again",
        ) from error
