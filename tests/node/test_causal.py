"""Causal tokens on real nodes in a simulated world: at ONE a client reads what it wrote, and never less than
it read, through whichever node; without a token it does not."""

from __future__ import annotations

import pytest

from lockstep.metadata.schema_change import ChangeSchema
from lockstep.node.node import Node
from lockstep.quorum.causal import CAUSAL, Causal
from lockstep.schema.changes import AlterKeyspace
from lockstep.sim.door import mutation_for
from lockstep.sim.load.history import Change
from lockstep.tracking import tokens
from lockstep.values.errors import ReadTimeout
from lockstep.values.ids import Consistency
from tests.node.support import Town
from tests.node.test_requests_while_moving import cut, table_of
from tests.node.test_tracked import (
    KEY,
    ONE,
    QUORUM,
    TIMEOUT_MS,
    _is_outside,
    isolated,
    looked_for,
    paused,
    rows_read,
    settled,
    tracked,
)


def wrote(
    town: Town, number: int, token: bytes = b"", level: Consistency = QUORUM, value: bytes = b"v"
) -> bytes:
    """The token that is answered to a write of one row."""

    async def work(node: Node) -> bytes:
        causal = Causal(tokens.decode(token))
        CAUSAL.set(causal)
        change = Change("t", KEY, node.runtime.clock.wall_us(), level, TIMEOUT_MS, ((1, value),))
        made = mutation_for(change, table_of(node), node.data.new_mutation_id(), 1)
        await node.data.coordinator.write(made, level, TIMEOUT_MS)
        return tokens.encode(causal.told())

    outcome = town.finish(town.begin(number, work))
    assert outcome.error is None, outcome.error
    return bytes(outcome.value)


def read(town: Town, number: int, token: bytes = b"", level: Consistency = ONE) -> tuple[int, bytes]:
    """How many rows are shown, and the token that is answered."""

    async def work(node: Node) -> tuple[int, bytes]:
        causal = Causal(tokens.decode(token))
        CAUSAL.set(causal)
        result = await node.data.coordinator.read(looked_for(node, None), level, TIMEOUT_MS)
        return sum(len(part.rows) for part in result.partitions), tokens.encode(causal.told())

    outcome = town.finish(town.begin(number, work))
    if outcome.error is not None:
        raise outcome.error
    rows, answered = outcome.value
    return rows, answered


def ids(token: bytes) -> int:
    return sum(span.held.count for span in tokens.decode(token))


def test_what_was_written_is_read_at_one_through_a_replica_that_lacks_it() -> None:
    with tracked(1) as town:
        paused(town, 1, 2, 3)
        cut(town, 1, 3)
        token = wrote(town, 1)
        assert ids(token) == 1
        assert rows_read(town, 3, level=ONE) == []
        assert read(town, 3)[0] == 0
        rows, again = read(town, 3, token)
        assert rows == 1
        assert again == token
        # It holds that now, for whoever asks.
        assert rows_read(town, 3, level=ONE) == [b"v"]


def test_what_was_read_is_read_again_through_another_node() -> None:
    with tracked(2) as town:
        paused(town, 1, 2, 3)
        cut(town, 1, 3)
        wrote(town, 1)
        rows, token = read(town, 2)
        assert (rows, ids(token)) == (1, 1)
        assert read(town, 3, token)[0] == 1
        assert read(town, 3, read(town, 2, level=QUORUM)[1])[0] == 1


def test_a_node_that_is_no_replica_tells_what_was_written_through_it() -> None:
    with tracked(3, 4) as town:
        outsider = next(number for number in range(1, 5) if _is_outside(town, number))
        inside = next(number for number in range(1, 5) if number != outsider)
        token = wrote(town, outsider)
        assert ids(token) == 1
        assert read(town, inside, token)[0] == read(town, outsider, token)[0] == 1


def test_what_every_replica_holds_leaves_the_token() -> None:
    with tracked(4) as town:
        token = wrote(town, 1)
        settled(town)
        rows, token = read(town, 2, token)
        assert (rows, ids(token)) == (1, 0)


def test_a_read_fails_rather_than_to_go_back() -> None:
    with tracked(5) as town:
        paused(town, 1, 2, 3)
        cut(town, 1, 3)
        token = wrote(town, 1, level=QUORUM)
        isolated(town, 3, (1, 2))
        with pytest.raises(ReadTimeout):
            read(town, 3, token)
        isolated(town, 3, (1, 2), heal=True)
        assert read(town, 3, token)[0] == 1


def test_what_was_seen_of_another_cut_is_asked_of_all() -> None:
    with tracked(6) as town:
        (span,) = tokens.decode(wrote(town, 1))
        other = tokens.encode([tokens.Span(span.group, span.left - 1, span.right, span.held)])
        settled(town)
        assert read(town, 2, other)[0] == 1
        town.world.network.block("127.0.0.2", "127.0.0.3")
        with pytest.raises(ReadTimeout):
            read(town, 2, other)


def test_an_untracked_table_follows_nothing() -> None:
    with tracked(7) as town:
        change = ChangeSchema(AlterKeyspace("ks", replication_type="untracked"))
        token = wrote(town, 1)
        assert town.finish(town.submit(1, change)).error is None
        town.agreed(1, 2, 3)
        assert wrote(town, 1, token) == b""
        assert read(town, 2, token)[0] == 1
