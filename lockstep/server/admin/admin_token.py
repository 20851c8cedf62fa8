"""The token of a node's admin port, in a file that only the node's own user reads.

Invariant: made once, at the node's first start; whoever reads the data directory has everything else as well.
"""

from __future__ import annotations

from typing import Final

from lockstep.runtime.ports import Runtime
from lockstep.values.errors import ConfigurationError

#: In the data directory.
PATH: Final = "admin.token"
_PARTIAL: Final = "admin.token.new"
_TOKEN_BYTES: Final = 32
#: Of a token that an operator wrote: with fewer, somebody might try them all.
TOKEN_CHARACTERS_MIN: Final = 32


async def own_token(runtime: Runtime) -> str:
    """The token in the data directory, made and durable when there is none. ConfigurationError."""
    disk = runtime.disk
    if disk.exists(PATH):
        return checked(disk.read(PATH), PATH)
    token = runtime.random.bytes(_TOKEN_BYTES).hex()
    if disk.exists(_PARTIAL):
        disk.remove(_PARTIAL)
    await disk.append_synced(_PARTIAL, f"{token}\n".encode())
    disk.rename(_PARTIAL, PATH)
    await disk.sync_names("")
    return token


def checked(content: bytes, name: str) -> str:
    """The token that a file holds. ConfigurationError when it is none."""
    text = content.decode("ascii", "replace").strip()
    if len(text) < TOKEN_CHARACTERS_MIN or not text.isascii() or not text.isprintable() or " " in text:
        raise ConfigurationError(
            f"{name} holds no token: at least {TOKEN_CHARACTERS_MIN} letters and digits on one line",
            hint="remove the file in the data directory, and the node makes another token when it starts",
        )
    return text
