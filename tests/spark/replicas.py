"""Replicas in this process: what their nodes store, answered as the readers beside them do."""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

from msgspec.structs import replace

from lockstep.scans.content_reading import Contents
from lockstep.scans.messages import Refusal, RowsWanted, SessionFacts
from lockstep.scans.scan_table import ScanTable
from lockstep.spark.options import Options
from lockstep.spark.snapshot_reading import SnapshotScan
from lockstep.spark.snapshots import Snapshot, SnapshotRange
from lockstep.storage.store import Pair
from lockstep.values.errors import PeerUnreachable
from lockstep.values.tokens import TOKEN_MAX, TOKEN_MIN
from tests.scans.support import NOW_S

WHOLE = [(TOKEN_MIN, TOKEN_MAX)]
GIVEN = Options((), 1, "k", "t")


class _Cursor:
    def __init__(self, pairs: Sequence[Pair]) -> None:
        self._pairs = list(pairs)

    def take(self, count: int) -> list[Pair]:
        found, self._pairs = self._pairs[:count], self._pairs[count:]
        return found

    def close(self) -> None: ...


class Replicas:
    """What nodes store, answered as their readers do. `tells`: as this release does; `fails`: now and then a
    connection breaks. `files`: what (node, lower, upper) has of table files."""

    def __init__(
        self,
        table: ScanTable,
        stored: dict[int, list[Pair]],
        *,
        tells: bool = True,
        fails: int = 0,
        files: Any = lambda *_: (),
    ) -> None:
        self.asked: list[tuple[int, RowsWanted]] = []
        self._tells, self._fails, self._count = tells, fails, 0
        facts = SessionFacts(b"", 0, table, ((TOKEN_MIN, TOKEN_MAX),))
        self._contents: dict[int, Contents] = {}
        for node, pairs in stored.items():
            opened: Any = SimpleNamespace(
                facts=facts,
                renew=lambda: None,
                cursor=_cursors(pairs),
                files=partial(SimpleNamespace, told=partial(files, node)),
                table_files=lambda: None,
                read_files=lambda: None,
            )
            world: Any = SimpleNamespace()
            contents = Contents(world, "")
            contents._open["s"] = opened
            self._contents[node] = contents

    def answer_of(self, _options: Any, node: int, wanted: RowsWanted) -> Iterator[tuple[Any, Any]]:
        self.asked.append((node, wanted))
        if not self._tells:
            wanted = replace(wanted, told=False)
        for head, body in self._contents[node].answer(wanted):
            self._count += 1
            if self._fails and not self._count % self._fails:
                raise PeerUnreachable("broken on purpose")
            assert not isinstance(head, Refusal), head
            yield head, body

    def snapshot(self, table: ScanTable, wanted: int) -> Snapshot:
        part = SnapshotRange(TOKEN_MIN, TOKEN_MAX, tuple(self._contents), wanted)
        return Snapshot("s", b"", NOW_S, table, (), (part,))

    def rows(self, table: ScanTable, names: tuple[str, ...], wanted: int) -> list[dict[str, Any]]:
        scan = SnapshotScan(GIVEN, self.snapshot(table, wanted), names)
        scan._locations = SimpleNamespace(  # type: ignore[assignment]
            of=lambda node: node, forget=lambda _: None, order=lambda part, _: list(part.nodes)
        )
        return [row for batch in scan.ranges(WHOLE) for row in batch.to_pylist()]


def _cursors(pairs: Sequence[Pair]) -> Any:
    names = [key for key, _ in pairs]
    return lambda lower, upper: _Cursor(
        pairs[bisect.bisect_left(names, lower) : bisect.bisect_left(names, upper)]
    )
