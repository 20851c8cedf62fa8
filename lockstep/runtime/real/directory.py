"""Files that belong to one process: its claim on a data directory, what is for its own user alone, and a file
of lines that only grows and makes way for a new one before it is too large.

Invariant: while the descriptor that `claim` returned is open, no other process can claim the directory; the
claim ends with the process, however it ends. After `keep_private`, every file that this process and those it
starts make is 0600 and every directory 0700, whichever library makes them. The file and those it was renamed
to (`.1` the newest) can be read by their owner alone; there are at most `files_max` of these beside it, so
what they take on the disk is bounded.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import Final

from lockstep.values.errors import ConfigurationError, PreconditionError

LOCK_FILE: Final = "lock"
_HINT: Final = "set [node] data_directory to a directory that this user may write"


def claim(directory: str) -> int:
    """Create the directory when it is absent, shut it to other users, and claim it; the descriptor must be
    kept.

    ConfigurationError when it cannot be written, PreconditionError when another process has it.
    """
    try:
        os.makedirs(directory, 0o700, exist_ok=True)
        # It may have been made by hand, or by a version that let others look in.
        os.chmod(directory, 0o700)
        descriptor = os.open(os.path.join(directory, LOCK_FILE), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise ConfigurationError(
            f"the data directory {directory} cannot be used: {error.strerror}", hint=_HINT
        ) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        raise PreconditionError(
            f"the data directory {directory} is in use by another process",
            hint="stop the node that runs on it, or give this node a directory of its own",
        ) from error
    return descriptor


_PRIVATE = 0o077


def keep_private() -> None:
    """Take all rights of others from what is made from now on."""
    os.umask(_PRIVATE)


def read_secret(path: str, setting: str) -> bytes:
    """The content of a file that a setting names. ConfigurationError when it cannot be read."""
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise ConfigurationError(f"{setting}: {path} cannot be read: {error.strerror}") from error


class RotatingFile:
    """What is written is with the operating system at once. OSError as of files."""

    def __init__(self, path: str, bytes_max: int, files_max: int) -> None:
        self._path = Path(path)
        self._bytes_max = bytes_max
        self._files_max = files_max
        self._open()

    def _open(self) -> None:
        self._file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        os.fchmod(self._file, 0o600)
        self._bytes = os.fstat(self._file).st_size

    def write(self, text: str) -> None:
        data = text.encode("utf-8", "backslashreplace")
        if self._bytes and self._bytes + len(data) > self._bytes_max:
            self._rotate()
        view = memoryview(data)
        while view:
            written = os.write(self._file, view)
            self._bytes += written
            view = view[written:]

    def _rotate(self) -> None:
        for number in range(self._files_max - 1, 0, -1):
            if self._numbered(number).exists():
                self._numbered(number).replace(self._numbered(number + 1))
        if self._files_max:
            self._path.replace(self._numbered(1))
        else:
            self._path.unlink()
        old = self._file
        self._open()
        os.close(old)

    def _numbered(self, number: int) -> Path:
        return self._path.with_name(f"{self._path.name}.{number}")

    def flush(self) -> None:
        """Nothing is held back."""

    def close(self) -> None:
        os.close(self._file)
