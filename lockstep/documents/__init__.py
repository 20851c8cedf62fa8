"""The JSON documents of the admin API as types: one module a family, one struct a document.

What a node serves, and what the command line, local tools and the console read of it, have the same members
in the same order; `tests/server/test_admin.py` holds what is served against these types byte for byte.
Members have values for when they are missing, for within a version of a document (`status/1`) members are
only added, and an older node does not tell the newer ones. Knows nothing but values.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from lockstep.values.errors import LockstepError

T = TypeVar("T", bound=msgspec.Struct)


def read(kind: type[T], answer: Mapping[str, Any]) -> T:
    """An answer as its type; members that this version does not know are left out. LockstepError."""
    try:
        return msgspec.convert(answer, kind)
    except msgspec.ValidationError as error:
        raise LockstepError(
            f"the node's answer is no {answer.get('schema') or kind.__name__}: {error}",
            hint="use the lockstep command of the node's version",
        ) from None
