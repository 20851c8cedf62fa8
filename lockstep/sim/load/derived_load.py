"""Clients that write a table of which something follows, its views or its indexes, made one after the other.

Invariant: timestamps are drawn out of order, so that writes overtake each other; some of what follows is
there before the rows, the rest is built from rows that are written meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec

from lockstep.cql.wire import client as wire
from lockstep.metadata.log.registry import EntryKind
from lockstep.metadata.schema_change import ChangeSchema
from lockstep.runtime.ports import Runtime
from lockstep.schema.changes import NewColumn
from lockstep.sim.load.cql_client import CqlClient
from lockstep.sim.load.history import Outcome
from lockstep.sim.load.operators import Operators
from lockstep.sim.load.side_load import SideClient, SideLoad
from lockstep.values.ids import Consistency

_LEVELS: Final = (Consistency.QUORUM, Consistency.QUORUM, Consistency.ONE)
#: Timestamps of writes lie up to this much apart from the clock.
_APART_US = 300_000


class Later(msgspec.Struct, frozen=True):
    """Something that is made `at_s` virtual seconds after the first of its kind could be."""

    at_s: float
    is_there: Callable[[], bool]
    change: Callable[[Runtime], ChangeSchema]


class DerivedLoad(SideLoad):
    """`labels`: places that runs have to reach now and then."""

    def __init__(
        self,
        operators: Operators,
        columns: tuple[NewColumn, ...],
        *,
        table: str,
        prefix: str,
        clients: int,
        host: int,
        labels: Sequence[str],
    ) -> None:
        super().__init__(operators, table, columns, prefix, clients, host)
        self._labels = labels
        self.compared = 0
        self.settled_s = 0.0
        operators.when_ready.append(self._make_later)

    def later(self) -> Sequence[Later]:
        """What is made, in this order."""
        raise AssertionError("abstract")

    def _make_later(self, runtime: Runtime) -> None:
        runtime.tasks.spawn(self._made(runtime), f"{self.table}.later")

    async def _made(self, runtime: Runtime) -> None:
        world, begun_s = self.cluster.world, None
        for one in self.later():
            while not one.is_there():
                if self._operators.stopped:
                    return
                if not self.has_table():
                    await asyncio.sleep(0.05)
                    continue
                begun_s = world.now_s() if begun_s is None else begun_s
                await asyncio.sleep(max(0.0, begun_s + one.at_s - world.now_s()))
                await self._operators.submit(runtime, EntryKind.SCHEMA_CHANGE, one.change(runtime))

    def read_all(self, names: list[str]) -> None:
        self.settled_s = self.cluster.world.now_s()
        super().read_all(names)

    def judge(self) -> int:
        for label in self._labels:
            if self.cluster.world.probes.counts.get(label):
                self.cluster.fact(label)
        return self.compared


class DerivedClient(SideClient):
    async def write(
        self,
        session: CqlClient,
        text: str,
        names: str,
        values: Mapping[str, bytes],
        level: Consistency | None = None,
    ) -> None:
        """Send a statement; `names` are its markers, `at` among them is a timestamp. A level is drawn if none
        is given."""
        now_us = int(self.cluster.world.now_s() * 1_000_000)
        at_us = now_us + self.draw.randrange(-_APART_US, _APART_US)
        stamped = {**values, "at": at_us.to_bytes(8, "big", signed=True)}
        given = [stamped[name] for name in names.split()]
        outcome, _, error = await self.execute(session, text, given, level or self.draw_level())
        self.cluster.tell(
            self.name, f"{text.split()[0]} {[part.hex() for part in given]} -> {outcome} {error}"
        )

    def draw_level(self) -> Consistency:
        return self.draw.choice(_LEVELS)

    async def rows(
        self, session: CqlClient, text: str, values: list[bytes], level: Consistency
    ) -> list[tuple[Any, ...]] | None:
        """None when there was no answer."""
        outcome, found, error = await self.execute(session, text, values, level)
        self.cluster.tell(self.name, f"{text} {values} at {level.name} -> {outcome} {error}")
        if outcome is not Outcome.OK:
            return None
        assert isinstance(found, wire.RowsResult)
        return [tuple(row) for row in found.rows]
