"""What nodes say to each other about bulk loads: the files, and how they come to all replicas.

Invariant: a file is told by its partition of the job, the attempt at it and its number in that, so no two
attempts ever meet in one file; what it holds is told by its digest.
"""

from __future__ import annotations

import enum
import hashlib

import msgspec

from lockstep.internode.handshake import Address
from lockstep.values.codec import decoder, encode
from lockstep.values.tokens import Range

_DIGEST_BYTES = 16


class LoadFile(msgspec.Struct, frozen=True, array_like=True):
    """A sorted file of a load, all of whose rows have tokens in (left, right]."""

    partition: int
    attempt: int
    number: int
    left: int
    right: int
    entries: int
    size_bytes: int
    first_key: bytes
    last_key: bytes
    digest: bytes

    @property
    def name(self) -> str:
        return f"{self.partition}-{self.attempt}-{self.number}"

    @property
    def range(self) -> Range:
        return Range(self.left, self.right)


class LoadManifest(msgspec.Struct, frozen=True, array_like=True):
    """All that a load commits, in the order of partitions and numbers."""

    job: str
    files: tuple[LoadFile, ...]

    @property
    def digest(self) -> bytes:
        return hashlib.blake2b(encode(self), digest_size=_DIGEST_BYTES).digest()


MANIFEST = decoder(LoadManifest)


def manifest_of(job: str, files: tuple[LoadFile, ...]) -> LoadManifest:
    return LoadManifest(job, tuple(sorted(files, key=lambda one: (one.partition, one.attempt, one.number))))


class LoadPhase(enum.IntEnum):
    """What is wanted: that files are held; that besides the whole list is; that they were taken in."""

    STAGE = 1
    PREPARE = 2
    TAKEN = 3


class LoadStage(msgspec.Struct, frozen=True, array_like=True):
    """`files` are the receiver's; `sources` hold them, each some. `epoch` knows of the load."""

    job: str
    phase: LoadPhase
    epoch: int
    files: tuple[LoadFile, ...] = ()
    sources: tuple[Address, ...] = ()
    manifest: LoadManifest | None = None


class LoadStaged(msgspec.Struct, frozen=True, array_like=True):
    """Names of the files that are held durably, each verified; `done`: all that was asked for is so."""

    names: tuple[str, ...]
    done: bool
    reason: str = ""


class LoadFetch(msgspec.Struct, frozen=True, array_like=True):
    job: str
    name: str
    offset: int
    size: int


class LoadPart(msgspec.Struct, frozen=True, array_like=True):
    """`found`: the file is here."""

    found: bool
    data: bytes = b""
