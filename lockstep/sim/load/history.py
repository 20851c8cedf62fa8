"""What clients asked and were told: the requests of a workload, and the record of their outcomes.

Invariant: an event is recorded when its request is sent, and ended at most once. `unknown` means the
request may have had, or may still get, its effect; `failed` means it never has one.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from itertools import islice

import msgspec

from lockstep.values.ids import Consistency

#: (partition key, clustering, value) of one live row.
SeenRow = tuple[bytes, int, bytes]
#: How many of the last events are looked through for the write of a value that was read.
_RECENT_MAX = 200


class Change(msgspec.Struct, frozen=True, array_like=True, tag="change"):
    """One write to one partition. `delete_rows` is first <= clustering < last."""

    table: str
    key: bytes
    timestamp_us: int
    consistency: Consistency
    timeout_ms: int
    puts: tuple[tuple[int, bytes], ...] = ()
    delete_row: int | None = None
    delete_rows: tuple[int, int] | None = None
    delete_partition: bool = False

    def touches(self, clustering: int) -> bool:
        """Whether the change writes or deletes the row."""
        if self.delete_partition or clustering == self.delete_row:
            return True
        if self.delete_rows is not None and self.delete_rows[0] <= clustering < self.delete_rows[1]:
            return True
        return any(clustering == put for put, _ in self.puts)

    def text(self) -> str:
        if self.puts:
            what = "put " + ", ".join(f"{at}={value.decode()}" for at, value in self.puts)
        elif self.delete_partition:
            what = "delete partition"
        else:
            what = f"delete {self.delete_row if self.delete_rows is None else self.delete_rows}"
        return f"{self.table}/{self.key.decode()} @{self.timestamp_us} {what} {self.consistency.name}"


class Look(msgspec.Struct, frozen=True, array_like=True, tag="look"):
    """One read: a row, a partition (no clustering) or the whole table (no key)."""

    table: str
    key: bytes | None
    clustering: int | None
    consistency: Consistency
    timeout_ms: int
    page_rows: int = 100

    def covers(self, key: bytes, clustering: int) -> bool:
        return self.key in (None, key) and self.clustering in (None, clustering)

    def text(self) -> str:
        what = "*" if self.key is None else self.key.decode()
        row = "" if self.clustering is None else f"[{self.clustering}]"
        return f"{self.table}/{what}{row} read {self.consistency.name}"


class Outcome(enum.StrEnum):
    OPEN = "open"
    OK = "ok"
    UNKNOWN = "unknown"
    FAILED = "failed"


class Event(msgspec.Struct, kw_only=True):
    """`end_ns` is meaningful when the outcome is not OPEN; `rows` are what a read that is OK returned.

    `dc` is the data centre of the node that was asked, "" where there is only one; `node` is its name.
    """

    client: str
    request: Change | Look
    start_ns: int
    end_ns: int = -1
    outcome: Outcome = Outcome.OPEN
    rows: tuple[SeenRow, ...] = ()
    error: str = ""
    dc: str = ""
    node: str = ""


class History:
    """All events in the order in which they began."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        #: Told each event when it has ended.
        self.listeners: list[Callable[[Event], None]] = []

    def began(self, client: str, request: Change | Look, at_ns: int, dc: str = "", node: str = "") -> Event:
        event = Event(client=client, request=request, start_ns=at_ns, dc=dc, node=node)
        self.events.append(event)
        return event

    def ended(
        self, event: Event, at_ns: int, outcome: Outcome, rows: tuple[SeenRow, ...] = (), error: str = ""
    ) -> None:
        assert event.outcome is Outcome.OPEN, "an event ends once"
        event.end_ns, event.outcome, event.rows, event.error = at_ns, outcome, rows, error
        for listener in tuple(self.listeners):
            listener(event)

    def seen_early(self, read: Event) -> bool:
        """Whether a read returned a value whose writer has not been told anything yet."""
        seen = {value for _, _, value in read.rows}
        return any(
            event.outcome is Outcome.OPEN
            and isinstance(event.request, Change)
            and any(value in seen for _, value in event.request.puts)
            for event in islice(reversed(self.events), _RECENT_MAX)
        )

    def count(self, outcome: Outcome) -> int:
        return sum(1 for event in self.events if event.outcome is outcome)
