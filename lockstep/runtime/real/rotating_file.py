"""A file of lines that only grows, and makes way for a new one before it is too large.

Invariant: the file and those it was renamed to (`.1` the newest) can be read by their owner alone; there are
at most `files_max` of these beside it, so what they take on the disk is bounded.
"""

from __future__ import annotations

import os
from pathlib import Path


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
