"""What is said about read sessions: to open one, what it is, and what is asked of and answered by its
readers.

Invariant: a request for rows shows the secret that its session was opened with. An answer is batches, each
with the key behind it, and ends with a trailer that counts and digests them, or with an error; an answer that
ends otherwise is not whole.
"""

from __future__ import annotations

import struct
from typing import Final, Literal, TypeAlias

import mmh3
import msgspec

from lockstep.metadata.repairs import Repaired
from lockstep.scans.scan_table import ScanTable
from lockstep.values.codec import Decoder, decoder, encode

#: Key of the custom payload that a SELECT of a table brings, in MessagePack, and of that of its answer.
PAYLOAD_KEY: Final = "lockstep-read-session"
SECRET_BYTES: Final = 16
Bounds: TypeAlias = tuple[tuple[bytes, bytes], ...]


class SessionOrder(msgspec.Struct, frozen=True):
    """`open`: also one that is open already. `find`: only such a one. `id` and `secret` are the client's."""

    do: Literal["open", "find", "close"]
    id: str
    secret: bytes
    lease_ms: int = 0


class SessionRange(msgspec.Struct, frozen=True, array_like=True):
    """A range with the ids of the nodes that reads ask for its rows, and the epoch that last changed them.
    `witnesses`: those beside them that have no rows."""

    left: int
    right: int
    reads: tuple[int, ...]
    epoch: int
    witnesses: tuple[int, ...] = ()


class SessionNode(msgspec.Struct, frozen=True, array_like=True):
    id: int
    address: str
    cql_port: int
    dc: str


class SessionOpened(msgspec.Struct, frozen=True, array_like=True):
    """What one node has of a session. `ranges` cover the ring; `port` is where its readers answer."""

    id: str
    node: int
    epoch: int
    port: int
    opened_us: int
    table: ScanTable
    ranges: tuple[SessionRange, ...]
    nodes: tuple[SessionNode, ...]

    @property
    def dc(self) -> str:
        return next(node.dc for node in self.nodes if node.id == self.node)


class SessionFacts(msgspec.Struct, frozen=True, array_like=True):
    """What readers are told of a session in a file beside its content. `owned` are the ranges that the
    node was asked for when it was opened, `repaired` is what was recorded of the table then."""

    secret: bytes
    lease_ms: int
    table: ScanTable
    owned: tuple[tuple[int, int], ...]
    repaired: tuple[Repaired, ...] = ()


class DigestsWanted(msgspec.Struct, frozen=True, array_like=True):
    """Of each range of tokens, (left, right, parts), the number of rows and a digest of each of its equal
    parts: an Arrow batch of `DIGESTS_SCHEMA` a range. `now_s`: when it is decided what may be purged, which
    counts as gone. `stored`: a digest is of fragments as they are stored, and rows are counted of the first
    `counted` ranges alone, with what may be purged. `files`: a digest, and the entries, of the table files of
    a whole range; null where that says nothing of what is in it."""

    ranges: tuple[tuple[int, int, int], ...]
    now_s: int
    stored: bool = False
    counted: int = 0
    files: bool = False


class RowsWanted(msgspec.Struct, frozen=True, array_like=True):
    """Rows of a session's table between keys of its store, in key order, in about `bytes_max` bytes.

    `fragments`: what is stored, to be merged with what other replicas store, in place of rows. `rows_max`: an
    answer may end when it has so many, of either; 0: no matter how many. `digests`: these in place of rows,
    and of their ranges in place of bounds. `told`: with each batch of rows the digest of what is stored
    between its key and that of the batch before. `cuts`: these digests in place of rows, of what lies before
    each of these keys and of what is behind the last, as one batch of `DIGESTS_SCHEMA`.
    """

    session: str
    secret: bytes
    bounds: Bounds
    bytes_max: int
    columns: tuple[str, ...] = ()
    now_s: int = 0
    decimal_scale: int = 0
    lone_statics: bool = True
    begun_in: bytes = b""
    fragments: bool = False
    rows_max: int = 0
    digests: DigestsWanted | None = None
    told: bool = False
    cuts: tuple[bytes, ...] | None = None


class BatchHead(msgspec.Struct, frozen=True, array_like=True, tag="batch"):
    """An Arrow record batch of `size` bytes follows, none with 0: it goes on. Reading goes on at `next_key`;
    `begun_in`: as it is to be asked for then. `stored`: the digest of what is stored, if it was wanted."""

    size: int
    rows: int
    next_key: bytes
    begun_in: bytes = b""
    stored: bytes = b""


class Trailer(msgspec.Struct, frozen=True, array_like=True, tag="trailer"):
    """The end of an answer. `ended`: there is nothing behind it. `fragments_read`, about `bytes_read`: what
    the replica read for it; `kept_rows` are those it had decoded before."""

    batches: int
    rows: int
    digest: bytes
    ended: bool
    fragments_read: int = 0
    bytes_read: int = 0
    kept_rows: int = 0


class Refusal(msgspec.Struct, frozen=True, array_like=True, tag="refusal"):
    """Instead of what was still to come. `expired`: the session is no more; `wrong`: nobody may have that."""

    message: str
    expired: bool = False
    wrong: bool = False


Head: TypeAlias = BatchHead | Trailer | Refusal
HEAD_LENGTH: Final = struct.Struct(">I")
#: Of one head: it names a key.
HEAD_BYTES_MAX: Final = 1024 * 1024

ORDER: Final = decoder(SessionOrder)
OPENED: Final = decoder(SessionOpened)
FACTS: Final = decoder(SessionFacts)
WANTED: Final = decoder(RowsWanted)
HEAD: Final[Decoder[BatchHead | Trailer | Refusal]] = decoder(BatchHead | Trailer | Refusal)  # type: ignore[arg-type]


def framed(message: RowsWanted | Head) -> bytes:
    """With its length before it."""
    told = encode(message)
    return HEAD_LENGTH.pack(len(told)) + told


class Tally:
    """Counts and digests the batches of one answer, for who sends and who receives them."""

    def __init__(self) -> None:
        self._hash = mmh3.mmh3_x64_128()
        self._batches = self._rows = 0

    def add(self, head: BatchHead, body: bytes | bytearray | memoryview) -> None:
        self._batches += 1
        self._rows += head.rows
        self._hash.update(head.next_key)
        self._hash.update(body)

    def trailer(self, *, ended: bool) -> Trailer:
        return Trailer(self._batches, self._rows, self._hash.digest(), ended)
