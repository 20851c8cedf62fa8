"""What a process writes is for its own user alone.

Invariant: after `keep_private`, every file that this process and those it starts make is 0600 and every
directory 0700, whichever library makes them.
"""

from __future__ import annotations

import os

from lockstep.values.errors import ConfigurationError

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
