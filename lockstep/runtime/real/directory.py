"""The claim of one process on a data directory.

Invariant: while the descriptor that `claim` returned is open, no other process can claim the directory; the
claim ends with the process, however it ends.
"""

from __future__ import annotations

import fcntl
import os
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
