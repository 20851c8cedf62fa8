"""Causal tokens on real nodes in a simulated world: at ONE a client reads what it wrote, and never less than
it read, through whichever node; without a token it does not."""

from __future__ import annotations

import msgspec
import pytest

from lockstep.metadata.schema_change import ChangeSchema
from lockstep.node.node import Node
from lockstep.quorum.causal import CAUSAL, Causal
from lockstep.schema.changes import AlterKeyspace, CreateTable, DropTable
from lockstep.sim.door import mutation_for
from lockstep.sim.load.history import Change
from lockstep.tracking import tokens
from lockstep.tracking.held import LOG_BITS, held_of
from lockstep.tracking.intervals import of
from lockstep.values.errors import ReadTimeout
from lockstep.values.ids import Consistency
from lockstep.values.tokens import token_of
from tests.node.support import Town
from tests.node.test_requests_while_moving import cut, table_of
from tests.node.test_tracked import (
    COLUMNS,
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


def read(
    town: Town, number: int, token: bytes = b"", level: Consistency = ONE, key: bytes = KEY
) -> tuple[int, bytes]:
    """How many rows are shown, and the token that is answered."""

    async def work(node: Node) -> tuple[int, bytes]:
        causal = Causal(tokens.decode(token))
        CAUSAL.set(causal)
        result = await node.data.coordinator.read(looked_for(node, None, key), level, TIMEOUT_MS)
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


def cut_otherwise(token: bytes) -> bytes:
    """The token, as if it had been told while the range began with one token more."""
    (span,) = tokens.decode(token)
    return tokens.encode([msgspec.structs.replace(span, left=span.left - 1)])


def client_of(token: bytes) -> tokens.Remembered:
    client = tokens.Remembered()
    client.answered((), tokens.decode(token))
    return client


def answered(client: tokens.Remembered, town: Town, number: int, key: bytes = KEY) -> int:
    """How many rows a read at ONE shows a client, which follows what it has seen."""
    sent = client.spans
    rows, token = read(town, number, tokens.encode(sent), key=key)
    client.answered(sent, tokens.decode(token))
    return rows


def test_what_was_seen_of_another_cut_is_asked_of_all() -> None:
    with tracked(6) as town:
        other = cut_otherwise(wrote(town, 1))
        settled(town)
        assert read(town, 2, other)[0] == 1
        town.world.network.block("127.0.0.2", "127.0.0.3")
        with pytest.raises(ReadTimeout):
            read(town, 2, other)


def test_what_was_seen_of_another_cut_is_asked_of_all_once() -> None:
    with tracked(8) as town:
        client = client_of(cut_otherwise(wrote(town, 1)))
        settled(town)
        assert answered(client, town, 2) == 1
        assert client.spans == ()
        town.world.network.block("127.0.0.2", "127.0.0.3")
        assert answered(client, town, 2) == 1


def test_of_another_cut_all_that_was_seen_of_the_range_is_followed() -> None:
    with tracked(9) as town:
        paused(town, 1, 2, 3)
        cut(town, 1, 3)
        token = wrote(town, 1)
        cut(town, 1, 3, heal=True)
        client = client_of(cut_otherwise(token))
        # Of another partition: all that is asked once is of the whole range.
        assert answered(client, town, 2, beside(town)) == 0
        assert client.spans == tokens.decode(token)
        cut(town, 1, 3)
        assert answered(client, town, 3) == 1


def test_a_table_of_the_same_name_follows_nothing_of_the_one_before() -> None:
    with tracked(10) as town:
        paused(town, 1, 2, 3)
        cut(town, 1, 3)
        client = client_of(wrote(town, 1))
        cut(town, 1, 3, heal=True)
        made = CreateTable("ks", "t", "00000000-0000-4000-8000-000000000002", COLUMNS)
        for change in (DropTable("ks", "t"), made):
            assert town.finish(town.submit(1, ChangeSchema(change))).error is None
        town.agreed(1, 2, 3)
        assert answered(client, town, 2) == 0
        client.answered(client.spans, tokens.decode(wrote(town, 1, tokens.encode(client.spans))))
        assert [answered(client, town, number) for number in (1, 2, 3)] == [1, 1, 1]


def test_what_was_seen_before_a_table_was_tracked_anew_is_followed_no_more() -> None:
    with tracked(11) as town:
        token = wrote(town, 1)
        (span,) = tokens.decode(token)
        lost = held_of({(3, 99 << LOG_BITS): of((5,))})
        client = client_of(tokens.encode([span, msgspec.structs.replace(span, since=-1, held=lost)]))
        assert answered(client, town, 2) == 1
        assert [one.since for one in client.spans] == [0]


def beside(town: Town) -> bytes:
    """The key of another partition of KEY's range."""
    node = town.node(1)
    ring = node.log.cluster.placements.ring(table_group(node))
    wanted = ring.range_at(token_of(KEY)).range
    return next(key for key in (b"%d" % n for n in range(10_000)) if wanted.contains(token_of(key)))


def table_group(node: Node) -> int:
    return node.log.cluster.schema.group_of(table_of(node))


def test_an_untracked_table_follows_nothing() -> None:
    with tracked(7) as town:
        change = ChangeSchema(AlterKeyspace("ks", replication_type="untracked"))
        token = wrote(town, 1)
        assert town.finish(town.submit(1, change)).error is None
        town.agreed(1, 2, 3)
        assert wrote(town, 1, token) == b""
        assert read(town, 2, token)[0] == 1
