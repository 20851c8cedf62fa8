"""What the node that drives a backup or a restore and the others tell each other.

Invariant: every order names its session, and is refused once that is closed where it arrives. Fields are only
appended.
"""

from __future__ import annotations

import enum

import msgspec

from lockstep.internode.handshake import Address
from lockstep.storage.backup_manifest import Statement
from lockstep.values.tokens import Range


class BackupAction(enum.IntEnum):
    #: Write this node's part of a backup, all but the manifest.
    TAKE = 1
    #: All have written theirs: write the manifest, which makes the part complete.
    SEAL = 2
    #: Remove what was written without one.
    DISCARD = 3
    #: Check the named parts, and serve them under the session.
    OFFER = 4
    #: Bring ranges of a table here, from those who offer parts.
    LOAD = 5


class Purpose(msgspec.Struct, frozen=True, array_like=True):
    """What is to be written into every manifest. `tables` are ids."""

    backup_id: str
    began_us: int
    nodes: tuple[str, ...]
    absent: tuple[str, ...]
    schema: tuple[Statement, ...]
    tables: tuple[int, ...]


class OfferedTable(msgspec.Struct, frozen=True, array_like=True):
    """`backed` is the id it had in the backup, `table` the id it has here."""

    backed: int
    table: int


class BackupOrder(msgspec.Struct, frozen=True, array_like=True):
    """The same order asked again joins the work. Of TAKE `purpose`; of OFFER `host_ids`, `offered`; of LOAD
    `table`, `ranges`, `sources`."""

    session_id: str
    epoch: int
    action: BackupAction
    name: str
    purpose: Purpose | None = None
    host_ids: tuple[str, ...] = ()
    offered: tuple[OfferedTable, ...] = ()
    table: int = 0
    ranges: tuple[Range, ...] = ()
    sources: tuple[Address, ...] = ()


class BackupStatus(msgspec.Struct, frozen=True, array_like=True):
    """`done` False: it is being worked on, ask again."""

    done: bool
    bytes: int = 0
    files: int = 0


class AskBackups(msgspec.Struct, frozen=True, array_like=True):
    """Which parts are kept at a node, all or of one backup. `with_manifests`: also what they hold. `remove`:
    and take them away."""

    name: str = ""
    with_manifests: bool = False
    remove: bool = False


class KeptPart(msgspec.Struct, frozen=True, array_like=True):
    """`problem` says why it is not complete; empty: it is, as far as its manifest tells. `manifest` as JSON,
    without the files."""

    name: str
    host_id: str
    problem: str = ""
    backup_id: str = ""
    began_us: int = 0
    size_bytes: int = 0
    nodes: tuple[str, ...] = ()
    manifest: bytes = b""


class KeptParts(msgspec.Struct, frozen=True, array_like=True):
    parts: tuple[KeptPart, ...]
