"""Which ALTER KEYSPACE is an operation, and which one entry of the log."""

from __future__ import annotations

import pytest

from lockstep.schema.changes import AlterKeyspace
from lockstep.schema.model import Replication
from lockstep.topology.kinds.replication import target_of, under_way
from lockstep.topology.requests import CancelRequest
from lockstep.values.errors import Rejected
from tests.metadata.histories import History, network, simple
from tests.topology.test_replication_change import advance, change, options, with_table


def asked(history: History, target: Replication, keyspace: str = "ks") -> Replication | None:
    return target_of(history.now, AlterKeyspace(keyspace, options(target)))


@pytest.mark.parametrize(
    ("present", "wanted", "is_operation"),
    [
        (simple(2), simple(3), True),
        (simple(3), simple(2), True),
        (simple(2), simple(2), False),
        (simple(2), network(dc1=2), False),
        (simple(2), network(dc1=3), True),
        # Nobody would be a replica: the request is made, and its refusal says so.
        (simple(2), simple(0), True),
    ],
)
def test_what_gives_ranges_other_replicas_is_an_operation(
    present: Replication, wanted: Replication, is_operation: bool
) -> None:
    history = with_table(4, present)
    assert asked(history, wanted) == (wanted if is_operation else None)


def test_what_has_no_tables_no_keyspace_or_no_replication_is_none() -> None:
    history = with_table(4, simple(1), others=(simple(1),))
    assert asked(history, simple(2), "k0") is None, "there is nothing to move"
    assert asked(history, simple(2), "nobody") is None
    assert asked(history, simple(2), "system_auth") is None
    assert target_of(history.now, AlterKeyspace("ks", durable_writes=False)) is None
    with pytest.raises(Rejected, match="Unable to find replication strategy class"):
        target_of(history.now, AlterKeyspace("ks", (("class", "Nowhere"),)))


def test_the_same_change_joins_the_one_that_is_under_way() -> None:
    history = with_table(4, simple(1))
    change(history, simple(3))
    (request,) = history.now.requests.live
    assert asked(history, simple(3)) == simple(3)
    assert under_way(history.now, "ks", simple(3)) == request
    assert asked(history, simple(2)) is None, "one entry refuses it, as the keyspace is busy"
    assert under_way(history.now, "ks", simple(2)) is None
    assert under_way(history.now, "other", simple(3)) is None
    while history.now.operations[0].step == 1:
        advance(history)
    history.submit(CancelRequest(request.id, "no"))
    assert history.now.operations, "it is on its way back"
    assert under_way(history.now, "ks", simple(3)) is None
    assert asked(history, simple(3)) is None
