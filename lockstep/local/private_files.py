"""Files that commands make for their own user alone: configurations with secrets, logs, dumps, copies.

Invariant: nobody else reads what is opened with `owner_only`, or made in a directory of mode
OWNER_DIRECTORY.
"""

from __future__ import annotations

import os
from typing import Final

OWNER_DIRECTORY: Final = 0o700
_OWNER_FILE: Final = 0o600


def owner_only(path: str, flags: int) -> int:
    """An opener for `open`: a new file is for its owner alone."""
    return os.open(path, flags, _OWNER_FILE)
