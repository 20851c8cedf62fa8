"""Replicas compare what lies under the ids that both hold: what is damaged is named, and nothing else is."""

from __future__ import annotations

import pytest

from lockstep.node.node import Node
from lockstep.replica import journal_audit
from lockstep.replica.journal_audit import Audited
from lockstep.storage.journal_loading import pairs_of
from lockstep.storage.journal_records import ENTRIES, RECORD, entry_of
from lockstep.storage.store import Family
from lockstep.values.codec import encode
from tests.node.support import Town
from tests.node.test_hints import away
from tests.node.test_tracked import tracked, write


def audited(town: Town, number: int) -> Audited:
    async def work(node: Node) -> Audited:
        return await node.data.journal_audit.run()

    outcome = town.finish(town.begin(number, work))
    assert outcome.error is None, outcome.error
    found: Audited = outcome.value
    return found


def damage(node: Node, every: int) -> int:
    """Store another row key under one of so many ids, with a whole entry around it; how many."""
    engine = node.data.engine
    changed = []
    for place, (key, value) in enumerate(pairs_of(engine, RECORD)):
        entry = ENTRIES.decode(value)
        if place % every == 0 and entry.mutation is not None:
            other = encode((entry.given_us, entry.mutation, entry.group, entry.table_id + 1, entry.token))
            changed.append((key, other))
    engine.write_records(Family.JOURNAL, [("put", key, value) for key, value in changed], is_due=True)
    assert all(entry_of(key) for key, _ in changed)
    return len(changed)


@pytest.mark.parametrize("every", [1000, 40, 1])
def test_what_differs_is_named_whether_it_is_one_or_all(every: int) -> None:
    with tracked(every) as town:
        away(town, 3)
        for number in range(60):
            assert write(town, 1, key=b"k%d" % number).error is None
        clean = audited(town, 1)
        assert clean.differing == () and clean.compared == 60 and clean.ended and clean.ranges > 1
        assert list(clean.silent) == [3], "who is away is not taken for one that holds the same"
        count = damage(town.node(2), every)
        found = audited(town, 1)
        assert len(found.differing) == count and {one.node for one in found.differing} == {2}
        assert len({one.id for one in found.differing}) == count
        assert {one.id for one in audited(town, 2).differing} == {one.id for one in found.differing}


def test_what_every_replica_has_is_not_compared_and_bounds_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    with tracked(7) as town:
        assert write(town, 1).error is None
        town.until(lambda: all(town.node(n).data.reconciler.journal.entry_count == 0 for n in (1, 2, 3)))
        assert audited(town, 1).compared == 0
        away(town, 3)
        for number in range(20):
            assert write(town, 1, key=b"k%d" % number).error is None
        monkeypatch.setattr(journal_audit, "AUDIT_IDS_MAX", 5)
        some = audited(town, 1)
        assert not some.ended and 5 <= some.compared < 20
