"""Backups and restores while nodes join, die and come back: what was acknowledged is there, or it is told."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from lockstep.metadata.repairs import Repair, RepairState
from lockstep.node.work.backup_service import BackupRestoring
from lockstep.replica.backup_messages import BackupOrder, BackupStatus
from lockstep.sim.plant import replaced
from lockstep.topology import repairs
from lockstep.values.errors import PreconditionError
from lockstep.values.tokens import token_of
from tests.node.support import Town
from tests.node.test_backups import (
    back_up,
    ended,
    founded,
    keys_at,
    part,
    restore,
    restoring,
    truncate,
    write,
)
from tests.node.test_repairs import done

KEYS = range(40)


def lacking(town: Town) -> dict[int, set[int]]:
    """By node the keys that it should have and has not."""
    cluster = town.newest
    ring = cluster.placements.ring(cluster.schema.by_name["ks"].group)
    found = {}
    for number in sorted({node for placed in ring.ranges for node in placed.group.reads}):
        mine = {key for key in KEYS if number in ring.group_for(token_of(key.to_bytes(4, "big"))).reads}
        found[int(number)] = mine - keys_at(town, int(number))
    return {number: keys for number, keys in found.items() if keys}


def settled(town: Town, *numbers: int) -> None:
    town.until(lambda: town.ready(*numbers) and not town.newest.operations, 120)
    town.agreed(*numbers)


def restored(town: Town, strike: Callable[[], None]) -> Repair:
    """A restore into the emptied table, struck when it has begun."""
    truncate(town)
    begun = done(town, town.begin(1, lambda node: restoring(node, "b")))
    strike()
    return ended(town, begun)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_node_that_joins_during_a_restore_has_all_of_it(seed: int) -> None:
    with Town(seed) as town:
        write(founded(town, 1, 2, 3), KEYS)
        assert back_up(town).state is RepairState.DONE
        found = restored(town, lambda: town.start(4))
        settled(town, 1, 2, 3, 4)
        if found.state is not RepairState.DONE:
            assert restore(town, number=1).state is RepairState.DONE
        assert lacking(town) == {}


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_backup_while_a_node_joins_has_all_or_fails(seed: int) -> None:
    with Town(seed) as town:
        write(founded(town, 1, 2, 3), KEYS)
        town.start(4)
        # Somewhere in the operation that gives the node its ranges.
        town.until(lambda: bool(town.newest.operations), 60)
        town.wait(0.3 * seed)
        begin = town.begin(1, lambda node: node.work.backups.begin("b", (part(town.newest),), ()))
        town.finish(begin)
        kept = begin.error is None and ended(town, begin.value).state is RepairState.DONE
        settled(town, 1, 2, 3, 4)
        if not kept:
            found = town.begin(1, lambda node: node.work.backups.found("b"))
            assert isinstance(town.finish(found).error, PreconditionError)
            return
        truncate(town)
        assert restore(town, number=1).state is RepairState.DONE
        assert lacking(town) == {}


@pytest.mark.parametrize("victim", [1, 2])
def test_a_restore_whose_node_dies_is_told_and_done_again(victim: int) -> None:
    """Of the driver, and of a node that serves its part and takes in the others'."""

    def strike() -> None:
        town.process(victim).crash()
        town.start(victim)

    with Town() as town:
        write(founded(town, 1, 2, 3), KEYS)
        assert back_up(town).state is RepairState.DONE
        found = restored(town, strike)
        settled(town, 1, 2, 3)
        if found.state is not RepairState.DONE:
            assert victim != 1 or "was started anew" in found.reason
            assert restore(town, number=3).state is RepairState.DONE
        assert lacking(town) == {}


def raced() -> dict[int, set[int]]:
    """What is lacking after a restore whose first round stands still until a node has joined: its copy came
    from replicas that had restored nothing yet."""
    load, goes_on = BackupRestoring.load, [False]

    async def held(self: BackupRestoring, order: BackupOrder) -> BackupStatus:
        # The test stands outside this loop, so it sets no event.
        while not goes_on[0]:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        return await load(self, order)

    with Town() as town, replaced((BackupRestoring, "load", held)):
        write(founded(town, 1, 2, 3), KEYS)
        assert back_up(town).state is RepairState.DONE
        truncate(town)
        begun = done(town, town.begin(1, lambda node: restoring(node, "b")))
        town.start(4)
        settled(town, 1, 2, 3, 4)
        goes_on[0] = True
        assert ended(town, begun).state is RepairState.DONE
        return lacking(town)


def test_a_restore_ends_only_when_those_who_came_have_it_too() -> None:
    assert raced() == {}


def test_the_end_looks_at_replicas_for_a_reason() -> None:
    """A planted bug: without that condition rows are lost."""
    with replaced((repairs, "is_unchanged", lambda *_: True)):
        assert set(raced()) == {4}
