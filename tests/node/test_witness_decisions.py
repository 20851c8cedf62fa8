"""Conditional writes and serial reads where one replica of three is a witness, on real nodes in a simulated
world: it promises and accepts, and shows no rows."""

from __future__ import annotations

from lockstep.consensus.paxos import Acceptor
from lockstep.coordination.ballot_rounds import Patience
from lockstep.coordination.conditional import Decision
from lockstep.metadata.directory import NodeState
from lockstep.node.node import Node
from lockstep.replica.messages import Place
from lockstep.sim.door import mutation_for
from lockstep.sim.load.history import Change
from lockstep.values.rows import ReadResult
from tests.node.support import Town, leave
from tests.node.test_hints import away
from tests.node.test_requests_while_moving import table_of
from tests.node.test_tracked import QUORUM, isolated, looked_for, paused, rows_of, rows_read
from tests.node.test_tracked_moves import alike, comes
from tests.node.test_tracked_statements import SERIAL, TIMEOUT_MS, doors, told
from tests.node.test_tracked_witnesses import KEYS, altered, given_by, roles, witnessed

PATIENCE = Patience(timeout_ms=1500, contention_ms=1000)


def place_of(node: Node, key: bytes) -> Place:
    command = looked_for(node, None, key)
    return Place(command.table_id, command.right, key)


def decided(town: Town, asked: int, key: bytes, value: bytes = b"first") -> bool:
    """Put a value into the first row where there is no row at all."""

    async def work(node: Node) -> bool:
        def decide(found: ReadResult, at_us: int) -> Decision:
            if found.partitions:
                return Decision(None, False)
            change = Change("t", key, at_us, QUORUM, TIMEOUT_MS, ((0, value),))
            return Decision(mutation_for(change, table_of(node), node.data.new_mutation_id(), 1), True)

        command = looked_for(node, None, key)
        found = node.data.conditionals.write(place_of(node, key), command, decide, SERIAL, QUORUM, PATIENCE)
        return bool(await found)

    outcome = town.finish(town.begin(asked, work))
    assert outcome.error is None, outcome.error
    return bool(outcome.value)


def serial_rows(town: Town, asked: int, key: bytes) -> int:
    async def work(node: Node) -> int:
        found = await node.data.conditionals.read(looked_for(node, None, key), SERIAL, PATIENCE)
        return sum(len(part.rows) for part in found.partitions)

    outcome = town.finish(town.begin(asked, work))
    assert outcome.error is None, outcome.error
    return int(outcome.value)


def acceptor(town: Town, number: int, key: bytes) -> Acceptor:
    node = town.node(number)
    return node.data.conditionals.shared.ballots._states.of(place_of(node, key))


def test_a_condition_is_judged_by_rows_of_full_replicas_whoever_promises() -> None:
    with witnessed(41) as town:
        for at, key in enumerate(KEYS):
            assert decided(town, at % 3 + 1, key)
            assert not any(decided(town, asked, key, b"second") for asked in (1, 2, 3))
            full, (witness,) = roles(town, key)
            assert [serial_rows(town, asked, key) for asked in (1, 2, 3)] == [1] * 3
            assert acceptor(town, witness, key).committed or all(
                acceptor(town, n, key).committed for n in full
            )
            assert rows_of(town, witness, key) == 0
        alike(town, 1, 2, 3)


def test_what_was_decided_with_a_witness_alone_decides_after_the_other_one_is_lost() -> None:
    """Told once a full replica and the witness had it; the other full replica never heard of it."""
    with witnessed(42) as town:
        paused(town, 1, 2, 3)
        (first, second), (witness,) = roles(town, KEYS[0])
        isolated(town, second, (first, witness))
        assert decided(town, first, KEYS[0])
        isolated(town, second, (first, witness), heal=True)
        isolated(town, first, (second, witness))
        assert not decided(town, second, KEYS[0], b"other")
        assert serial_rows(town, witness, KEYS[0]) == 1
        assert rows_read(town, second, key=KEYS[0]) == [b"first"]
        assert rows_of(town, witness, KEYS[0]) == 0


def test_what_a_witness_alone_holds_is_in_what_decides() -> None:
    """A plain write that reached the witness only, as its coordinator died: seen once, it is seen again."""
    with witnessed(43) as town:
        paused(town, 1, 2, 3)
        (first, second), (witness,) = roles(town, KEYS[1])
        given_by(town, witness, KEYS[1])
        isolated(town, second, (first, witness))
        assert not decided(town, first, KEYS[1])
        assert serial_rows(town, witness, KEYS[1]) == 10
        isolated(town, second, (first, witness), heal=True)
        isolated(town, witness, (first, second))
        assert not decided(town, second, KEYS[1])


def test_statements_with_conditions_go_on_while_a_full_replica_is_away() -> None:
    with witnessed(44) as town:
        doors(town, 1, 2, 3)
        told(town, 1, "INSERT INTO ks.t (pk, ck, v) VALUES (0x7730, 1, 'x') IF NOT EXISTS")
        (lost, other), (witness,) = roles(town, b"w0")
        away(town, lost, (other, witness))
        for asked, value in ((other, "y"), (witness, "z")):
            before = {"y": "x", "z": "y"}[value]
            text = f"UPDATE ks.t SET v = '{value}' WHERE pk = 0x7730 AND ck = 1 IF v = '{before}'"
            assert told(town, asked, text) == [(b"\x01",)]
            assert told(town, asked, text)[0][0] == b"\x00"
        batch = "; ".join(f"INSERT INTO ks.t (pk, ck, v) VALUES (0x7730, {n}, 'b')" for n in (2, 3))
        assert told(town, other, f"BEGIN BATCH {batch} IF NOT EXISTS; APPLY BATCH") == [(b"\x01",)]
        assert len(told(town, witness, "SELECT ck FROM ks.t WHERE pk = 0x7730", level=SERIAL)) == 3


def decided_by_two(town: Town) -> dict[bytes, dict[int, Acceptor]]:
    """What two of three replicas promised and know as decided, of which one alone is full: nobody is filled
    with it by chance."""
    found: dict[bytes, dict[int, Acceptor]] = {}
    for cut in (1, 2, 3):
        others = tuple({1, 2, 3} - {cut})
        isolated(town, cut, others)
        for key in KEYS:
            full, witnesses = roles(town, key, others[0])
            if cut in full and key not in found:
                (asked,) = set(full) - {cut}
                assert decided(town, asked, key)
                found[key] = {number: acceptor(town, number, key) for number in (asked, *witnesses)}
        town.wait(8)  # Until connections are over that still have what was decided for the third one.
        isolated(town, cut, others, heal=True)
    assert len(found) == len(KEYS)
    return found


def test_who_changes_its_role_keeps_what_it_promised() -> None:
    with witnessed(45) as town:
        before = decided_by_two(town)
        for factor in ("3", "3/1"):
            altered(town, factor)
            for key, known in before.items():
                for number, was in known.items():
                    now = acceptor(town, number, key)
                    assert now.promised >= was.promised and now.committed == was.committed, (key, number)
        assert not any(decided(town, 2, key, b"second") for key in KEYS)
        alike(town, 1, 2, 3)


def test_who_comes_gets_what_a_witness_promised() -> None:
    with witnessed(46) as town:
        assert town.process(4).name == "n4", "its clock runs from here on"
        before = decided_by_two(town)
        comes(town, 4)
        town.agreed(1, 2, 3, 4)
        for key, known in before.items():
            least = min(one.promised for one in known.values())
            replicas = [number for some in roles(town, key) for number in some]
            informed = [number for number in replicas if acceptor(town, number, key).promised >= least]
            assert len(informed) >= 2, "a quorum still has it"
            assert not decided(town, 4, key, b"second")
        node = int(town.node(1).context.own_id())
        assert town.finish(town.submit(2, leave(node))).error is None
        town.until(lambda: town.state_of(node) is NodeState.LEFT, 300)
        assert not any(decided(town, 4, key, b"third") for key in KEYS)
        alike(town, 2, 3, 4)
