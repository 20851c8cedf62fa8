"""The kinds of requests that rounds serve, as values: all in which they differ from each other.

Invariant: a change of a counter, which is to be added once, goes to another replica only after an error that
says that nothing was added.
"""

from __future__ import annotations

from typing import Final

from lockstep.quorum.round import Failure, First, Policy
from lockstep.values.errors import (
    CorruptFile,
    HandshakeRefused,
    NodeExcluded,
    NotReplica,
    Overloaded,
    PeerError,
    PeerTimeout,
    RangeLacking,
    StaleEpoch,
)

#: A replica that answered with one of these may do better in a moment.
_TRANSIENT: Final = ((PeerError, NotReplica, Overloaded), Failure.PASSING)
_AHEAD: Final = ((StaleEpoch,), Failure.AHEAD)

#: Writes of clients, what is owed to replicas, and what reads repair: each replica has to have them.
WRITE: Final = Policy("write", First.EVERYONE, (_AHEAD, _TRANSIENT), follows=True)
#: Questions for rows; their answers are of one plan.
READ: Final = Policy("read", First.ENOUGH, (_AHEAD, _TRANSIENT), replaces=True, forgets=True)
#: Promises, proposals and decisions of ballots.
BALLOT: Final = Policy("conditional", First.EVERYONE, (_AHEAD, _TRANSIENT), forgets=True)
#: Who keeps a logged batch, which knows no plan.
BATCH: Final = Policy("batches", First.ENOUGH, (_TRANSIENT,), replaces=True)
#: Who counts a change of a counter: one after the other.
COUNTER: Final = Policy(
    "counter",
    First.ENOUGH,
    (
        ((PeerTimeout,), Failure.DECISIVE),
        _AHEAD,
        _TRANSIENT,
        ((NodeExcluded, HandshakeRefused, RangeLacking, CorruptFile), Failure.PASSING),
    ),
    otherwise=Failure.DECISIVE,
    replaces=True,
)
