"""Files of dumps, as commands read and write them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from lockstep.local.processes import owner_only
from lockstep.values.errors import ConfigurationError
from lockstep.values.limits import SNAPSHOT_PIECE_BYTES_MAX


def written(target: Path, pieces: Iterator[bytes]) -> int:
    """Bytes written; the file gets its name when it is whole."""
    partial = target.with_name(target.name + ".part")
    size = 0
    try:
        with open(partial, "wb", opener=owner_only) as out:
            for piece in pieces:
                size += out.write(piece)
        partial.rename(target)
    except OSError as error:
        raise ConfigurationError(f"{target} cannot be written: {error.strerror}") from error
    finally:
        partial.unlink(missing_ok=True)
    return size


def parts(file: Path) -> Iterator[bytes]:
    try:
        with file.open("rb") as source:
            while part := source.read(SNAPSHOT_PIECE_BYTES_MAX):
                yield part
    except OSError as error:
        raise ConfigurationError(f"{file} cannot be read: {error.strerror}") from error
