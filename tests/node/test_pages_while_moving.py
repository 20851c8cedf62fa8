"""Pages of a scan while a node joins and another leaves: together they are what one answer would be."""

from __future__ import annotations

import asyncio
from collections import Counter

import msgspec
import pytest

from lockstep.node.node import Node
from lockstep.sim.door import command_for, mutation_for
from lockstep.sim.load.history import Change, Look
from lockstep.values.ids import Consistency
from lockstep.values.rows import Position
from tests.node.support import Outcome, Town
from tests.node.test_requests_while_moving import TIMEOUT_MS, founded, join_and_leave, table_of

SIZES = (1, 2, 7)
ROWS = [(f"key{number % 9}".encode(), number) for number in range(30)]


class Pagers:
    """For each size a client that pages through the table again and again, each page from another node."""

    def __init__(self, town: Town, numbers: tuple[int, ...]) -> None:
        self.town = town
        self.numbers = numbers
        self.stopped = False
        self.scans: Counter[int] = Counter()
        self.differing: list[list[tuple[bytes, bytes]]] = []
        #: Epochs at which the pages of one scan were asked for.
        self.moved = 0

    async def load(self, node: Node) -> None:
        for at, (key, number) in enumerate(ROWS):
            change = Change("t", key, at + 1, Consistency.ALL, TIMEOUT_MS, ((number, b"v"),))
            made = mutation_for(change, table_of(node), node.data.new_mutation_id(), 1)
            await node.data.coordinator.write(made, Consistency.ALL, TIMEOUT_MS)

    async def rows(self, node: Node, size: int) -> list[tuple[bytes, bytes]]:
        """All rows, in pages of `size`, each asked of the next node."""
        look = Look("t", None, None, Consistency.QUORUM, TIMEOUT_MS)
        got: list[tuple[bytes, bytes]] = []
        after: Position | None = None
        epochs = set()
        for turn in range(len(ROWS) + 2):
            other = self.town.node(self.numbers[turn % len(self.numbers)])
            epochs.add(other.log.cluster.epoch)
            command = command_for(look, table_of(other), 1, None)
            command = msgspec.structs.replace(command, row_limit=size, after=after)
            # The next node's coordinator works on that node's loop.
            outcome = self.town.begin(
                self.numbers[turn % len(self.numbers)],
                lambda at, command=command: at.data.coordinator.read(command, look.consistency, TIMEOUT_MS),  # type: ignore[misc]
            )
            for _ in range(TIMEOUT_MS):
                if outcome.done:
                    break
                await asyncio.sleep(0.002)
            assert outcome.done and outcome.error is None, outcome.error
            page = outcome.value
            got += [(part.key, row.clustering) for part in page.partitions for row in part.rows]
            after = page.end
            if not page.more:
                break
        self.moved += len(epochs) > 1
        return got

    async def run(self, node: Node, size: int) -> None:
        whole = await self.rows(node, 10 * len(ROWS))
        while not self.stopped:
            got = await self.rows(node, size)
            self.scans[size] += 1
            if got != whole:
                self.differing.append(got)
            await asyncio.sleep(0.005)

    def begin(self) -> list[Outcome]:
        assert self.town.finish(self.town.begin(1, self.load)).error is None
        return [self.town.begin(1, lambda node, size=size: self.run(node, size)) for size in SIZES]  # type: ignore[misc]


@pytest.mark.parametrize("seed", [1, 2])
def test_pages_over_a_changing_ring_are_the_unpaged_answer(seed: int) -> None:
    with founded(seed) as town:
        pagers = Pagers(town, (1, 2))
        outcomes = pagers.begin()
        join_and_leave(town)
        pagers.stopped = True
        town.until(lambda: all(outcome.done for outcome in outcomes))
        assert [outcome.error for outcome in outcomes if outcome.error is not None] == []
        assert pagers.differing == []
        assert all(pagers.scans[size] > 2 for size in SIZES), pagers.scans
        assert pagers.moved > 0, "some scans saw the ring change"
