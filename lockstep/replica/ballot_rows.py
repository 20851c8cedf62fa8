"""A partition's ballots as stored: one row of the table's companion, a cell for each part.

Invariant: a cell's timestamp is its ballot's time, so that states of several replicas or fragments merge to
the latest of each part, as cells do.
"""

from __future__ import annotations

from typing import Final

from lockstep.consensus.paxos import NO_BALLOT, Acceptor, Ballot, Proposal
from lockstep.storage.rows.keys import ballots_of
from lockstep.values.codec import decoder, encode
from lockstep.values.limits import BALLOTS_KEPT_S
from lockstep.values.rows import ALL_ROWS, Cell, Mutation, ReadCommand, ReadResult, Row

_PROMISED: Final = 1
_ACCEPTED: Final = 2
_COMMITTED: Final = 3
_BALLOT = decoder(Ballot)
_PROPOSAL = decoder(Proposal)


def command_for(table_id: int, token: int, key: bytes) -> ReadCommand:
    """The read of a partition's ballots. They have ended when they are purged, not when a clock says so."""
    return ReadCommand(ballots_of(table_id), token - 1, token, key, ALL_ROWS, (), False, False, 0, 0, 0)


def state_in(result: ReadResult) -> Acceptor:
    """The acceptor's state that was read; a new one's when there is none."""
    promised, proposals = NO_BALLOT, dict[int, Proposal]()
    for partition in result.partitions:
        for row in partition.rows:
            for cell in row.cells:
                if cell.value is None:
                    continue
                if cell.column == _PROMISED:
                    promised = _BALLOT.decode(cell.value)
                else:
                    proposals[cell.column] = _PROPOSAL.decode(cell.value)
    return Acceptor(promised, proposals.get(_ACCEPTED), proposals.get(_COMMITTED))


def mutation_between(
    before: Acceptor,
    after: Acceptor,
    *,
    table_id: int,
    token: int,
    key: bytes,
    mutation_id: bytes,
    now_s: int,
) -> Mutation:
    """What has changed, to be written."""
    cells: list[Cell] = []

    def cell(column: int, ballot: Ballot, value: bytes) -> None:
        cells.append(Cell(column, value, ballot.time_us, BALLOTS_KEPT_S, now_s + BALLOTS_KEPT_S))

    if after.promised != before.promised:
        cell(_PROMISED, after.promised, encode(after.promised))
    if after.accepted is not None and after.accepted != before.accepted:
        cell(_ACCEPTED, after.accepted.ballot, encode(after.accepted))
    if after.committed is not None and after.committed != before.committed:
        cell(_COMMITTED, after.committed.ballot, encode(after.committed))
    newest_us = max(entry.timestamp_us for entry in cells)
    row = Row(b"", None, None, tuple(cells))
    return Mutation(ballots_of(table_id), token, key, mutation_id, newest_us, rows=(row,))
