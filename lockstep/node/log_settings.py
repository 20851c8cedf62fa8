"""Sections `log` and `audit` of the configuration, and how settings are shown.

Invariant: what a setting keeps secret is shown nowhere.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Final, Literal

import msgspec

from lockstep.values.node_limits import AUDIT_FILE_BYTES, AUDIT_FILES, LOG_FILE_BYTES, LOG_FILES

#: At least some lines, at most what an editor opens.
FileBytes = Annotated[int, msgspec.Meta(ge=4096, le=1 << 40)]
Files = Annotated[int, msgspec.Meta(ge=0, le=1000)]
_SECRET: Final = re.compile(r"(^|_)(password|passphrase|secret|token|credentials?)$")
MASKED: Final = "********"


class LogSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`file`: where lines go instead of standard error; before it is larger than `rotate_bytes` it is renamed
    to FILE.1 and so on, of which `rotate_files` stay."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["json", "text"] = "text"
    file: str = ""
    rotate_bytes: FileBytes = LOG_FILE_BYTES
    rotate_files: Files = LOG_FILES


class AuditSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Failed logins and changing admin requests, as lines of JSON in a file that only grows. `file`: empty is
    audit.log in the data directory."""

    enabled: bool = True
    file: str = ""
    rotate_bytes: FileBytes = AUDIT_FILE_BYTES
    rotate_files: Files = AUDIT_FILES


def is_secret(key: str) -> bool:
    """Whether a setting or field of this name holds what only its owner may know."""
    return _SECRET.search(key.lower()) is not None


def masked(value: Any) -> Any:
    """A document of settings or of a request, with what it keeps secret replaced."""
    if isinstance(value, dict):
        return {
            key: MASKED if is_secret(str(key)) and inner else masked(inner) for key, inner in value.items()
        }
    return [masked(inner) for inner in value] if isinstance(value, list | tuple) else value
