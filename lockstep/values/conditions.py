"""What can be wrong with a node or with the cluster: one row a condition, and how bad it is.

A node reports the conditions that hold of itself; others follow from the metadata value and from who is
alive. Both kinds have their row in CONDITIONS, so that every place that shows one says the same of it.

Invariant: a condition is named by its code and its subject; its texts are bounded, for it travels in gossip.
"""

from __future__ import annotations

import enum
from typing import Final, Literal

import msgspec

#: Conditions that one node holds of itself: one damaged file each, say, of a disk that fails.
CONDITIONS_HELD_MAX: Final = 1024
#: Conditions of one node that gossip carries, the worst first: 16 of the largest have some 5 kilobytes.
CONDITIONS_TOLD_MAX: Final = 16
#: Bytes of a code, of a subject and of a detail; file names and error sentences fit.
CONDITION_CODE_BYTES_MAX: Final = 64
CONDITION_SUBJECT_BYTES_MAX: Final = 128
CONDITION_DETAIL_BYTES_MAX: Final = 256


class Level(enum.IntEnum):
    """DEGRADED: clients are served, with less margin than the cluster is built for, or not everything works.
    UNAVAILABLE: some requests of clients at QUORUM fail."""

    HEALTHY = 0
    DEGRADED = 1
    UNAVAILABLE = 2

    @property
    def word(self) -> str:
        return self.name.lower()


class Condition(msgspec.Struct, frozen=True, array_like=True):
    """`subject`: what it is about, where a node can have several of one code: a file, a peer, a keyspace.
    `since_us`: wall clock of the node that reports it; 0 when unknown."""

    code: str
    subject: str = ""
    since_us: int = 0
    detail: str = ""


class ConditionKind(msgspec.Struct, frozen=True):
    """`summary` is a clause that may name {node}, {subject} and {detail}. `at_risk`: what can still be lost.
    `hint`: the next command or step, which may name {id} (of the node) and {subject}. `page`: below
    docs/operate, without its ending. `withholds`: what of a replica's work the node does not do meanwhile;
    `witnessed`: it takes no writes of ranges of which it is a witness."""

    code: str
    level: Level
    summary: str
    at_risk: str
    hint: str
    page: str
    withholds: Literal["nothing", "witnessed", "writes", "everything"] = "nothing"


_ROWS: Final = (
    ConditionKind(
        "NODE_DOWN",
        Level.DEGRADED,
        "{node} is down",
        "nothing while a quorum of each range is up; its ranges tolerate one failure less",
        "start it; its own log says why it ended",
        "node-down",
        withholds="everything",
    ),
    ConditionKind(
        "NODE_EXCLUDED",
        Level.UNAVAILABLE,
        "{node} is excluded",
        "nothing while a quorum of each range is up; the others refuse its requests for data",
        "lockstep topology exclude {id} --undo, once it has caught up",
        "node-is-refused",
        withholds="everything",
    ),
    ConditionKind(
        "METADATA_STOPPED",
        Level.UNAVAILABLE,
        "{node} serves no more: {detail}",
        "nothing while a quorum of each range is up; the node takes part in nothing",
        "lockstep explain CANNOT_APPLY",
        "entry-cannot-be-applied",
        withholds="everything",
    ),
    ConditionKind(
        "NO_QUORUM",
        Level.UNAVAILABLE,
        "no quorum for some ranges of {subject}",
        "nothing that is on the disks of the nodes that are down; requests at QUORUM fail",
        "start the nodes that are down",
        "lost-data-centre",
    ),
    ConditionKind(
        "NO_WRITE_QUORUM",
        Level.UNAVAILABLE,
        "no quorum takes writes for some ranges of {subject}",
        "nothing acknowledged; writes at QUORUM fail",
        "mend the nodes that take no writes, or start those that are down",
        "disk",
    ),
    ConditionKind(
        "METADATA_NO_MAJORITY",
        Level.DEGRADED,
        "no majority of the metadata group",
        "nothing; schema and topology cannot be changed",
        "start the voters that are down: lockstep cms describe",
        "service-majority-lost",
    ),
    ConditionKind(
        "CLOCK_SKEW",
        Level.DEGRADED,
        "the clock of {node} is {detail}",
        "the order of writes whose timestamps nodes give: a later one may lose to an earlier one",
        "set its clock right (NTP); clock.skew_warn_ms is the bound",
        "clock-skew",
    ),
    ConditionKind(
        "CLOCK_SET_BACK",
        Level.DEGRADED,
        "{node} gives timestamps {detail} ahead of its clock, which was set back",
        "the order of its writes with those of other nodes, until its clock has come so far",
        "write what must be ordered through this node, or with timestamps of the client, until then",
        "clock-skew",
    ),
    ConditionKind(
        "DISK_FULL",
        Level.DEGRADED,
        "{node} refuses writes: its disk is full",
        "nothing acknowledged; what it misses comes as hints, for as long as other nodes keep them",
        "make room on the data directory's disk: storage.reserve_bytes stay free",
        "disk",
        withholds="writes",
    ),
    ConditionKind(
        "NODE_OVERLOADED",
        Level.DEGRADED,
        "{node} refuses requests of clients: it gets more than it can answer",
        "nothing: what is refused had no effect, and clients are told at once",
        "find out who asks so much, or add nodes",
        "overload",
    ),
    ConditionKind(
        "TABLE_FILE_DAMAGED",
        Level.DEGRADED,
        "{node} has a damaged table file, {subject}: {detail}",
        "what is in the damaged blocks, where no other replica has it; others answer for it meanwhile",
        "lockstep node scrub names all; stop it, lockstep node recover --keep-readable, and start it",
        "damaged-table-file",
    ),
    ConditionKind(
        "RANGE_LACKING",
        Level.DEGRADED,
        "{node} lost a part of its store ({subject}) and is filled from other replicas: {detail}",
        "acknowledged writes, if other replicas of the same ranges fail before it is filled",
        "lockstep topology watch",
        "damaged-table-file",
    ),
    ConditionKind(
        "RANGE_LOST",
        Level.UNAVAILABLE,
        "{node} lost {subject}, of which no other replica exists",
        "it is lost, but for a backup: requests for it fail until it is given up",
        "lockstep backup restore, or, with the node stopped, node recover --keep-readable --accept-data-loss",
        "damaged-table-file",
    ),
    ConditionKind(
        "JOINER_DOWN",
        Level.DEGRADED,
        "{node} died while it joined",
        "nothing; its request waits, and others may wait behind it",
        "start it with the same data directory, or lockstep topology cancel ID",
        "dead-joining-node",
    ),
    ConditionKind(
        "NODE_NOT_SERVING",
        Level.DEGRADED,
        "{node} serves no clients",
        "nothing; clients use other nodes",
        "lockstep why {id}; its log says whether it starts or stops",
        "node-does-not-start",
    ),
    ConditionKind(
        "NODE_DRAINED",
        Level.DEGRADED,
        "{node} was drained and serves no clients",
        "nothing; it is a replica as before, and clients use other nodes",
        "start it again, or stop it",
        "node-down",
    ),
    ConditionKind(
        "NO_LOCAL_QUORUM",
        Level.DEGRADED,
        "no quorum within data centre {subject} for some ranges",
        "nothing that is on the disks of the nodes that are down; requests at LOCAL_QUORUM there fail",
        "start the nodes that are down",
        "lost-data-centre",
    ),
    ConditionKind(
        "RANGES_DEGRADED",
        Level.DEGRADED,
        "{subject} has ranges that may lack writes: {detail}",
        "acknowledged writes that only a node that is gone had, or kept for others",
        "lockstep repair {subject}",
        "node-down",
    ),
    ConditionKind(
        "TABLETS_LACK_REPLICAS",
        Level.DEGRADED,
        "tablets lack a replica that a node which has left had: {detail}",
        "nothing of itself; they survive fewer losses until their replicas are built anew",
        "lockstep tablets plan shows what is built, and what that waits for",
        "node-down",
    ),
    ConditionKind(
        "JOURNAL_LARGE",
        Level.DEGRADED,
        "{node} keeps a large journal of tracked tables: {detail}",
        "nothing; its disk fills until every replica has what is kept",
        "lockstep reconcile why says for which replica it is kept",
        "journal-is-large",
    ),
    ConditionKind(
        "WITNESS_JOURNAL_LARGE",
        Level.DEGRADED,
        "{node} keeps much as a witness, for a full replica is away: {detail}",
        "nothing yet; at the limit it takes no more writes of tables whose witness it is",
        "lockstep reconcile why says for which replica it is kept: bring that one back, or replace it",
        "journal-is-large",
    ),
    ConditionKind(
        "WITNESS_JOURNAL_FULL",
        Level.DEGRADED,
        "{node} refuses writes as a witness, for its journal is as large as it may be: {detail}",
        "nothing acknowledged; writes that need it fail until a full replica is back",
        "lockstep reconcile why says for which replica it is kept: bring that one back, or replace it",
        "journal-is-large",
        withholds="witnessed",
    ),
    ConditionKind(
        "REPLICA_LAGS",
        Level.DEGRADED,
        "{subject} lacks mutations of tracked tables that {node} keeps for it: {detail}",
        "nothing as long as the others live: its ranges have one copy less of these",
        "lockstep reconcile why says since when and what it waits for",
        "replica-lags",
    ),
    ConditionKind(
        "IDS_AND_DATA_DISAGREE",
        Level.DEGRADED,
        "a full repair that {node} drove found that data and ids of {subject} disagree: {detail}",
        "what was lost, or was never named, on all replicas; what one of them had was sent to the others",
        "look at the disks of the nodes that the log names; lockstep repair {subject} --full, at this node",
        "ids-and-data-disagree",
    ),
    ConditionKind(
        "OPERATION_STUCK",
        Level.DEGRADED,
        "{subject} does not go on: {detail}",
        "nothing; what it changes stays as it is",
        "lockstep topology watch shows what it waits for",
        "operation-waits",
    ),
    ConditionKind(
        "VOTERS_STUCK",
        Level.DEGRADED,
        "the voters of the metadata group wait: {detail}",
        "the metadata may survive fewer losses than the cluster has nodes for",
        "lockstep cms reconfigure --status",
        "change-the-voters",
    ),
    ConditionKind(
        "METADATA_FROZEN",
        Level.DEGRADED,
        "the metadata is frozen: {detail}",
        "nothing; schema and topology cannot be changed",
        "lockstep cms thaw",
        "metadata-frozen",
    ),
    ConditionKind(
        "METADATA_READ_ONLY",
        Level.DEGRADED,
        "{node} changes no metadata: {detail}",
        "nothing; schema and topology cannot be changed",
        "start the nodes that are down; lockstep cms thaw accepts that they are gone",
        "metadata-read-only",
    ),
    ConditionKind(
        "METADATA_NO_LEADER",
        Level.DEGRADED,
        "{node} knows no leader of the metadata group",
        "nothing; schema and topology cannot be changed",
        "lockstep cms describe",
        "metadata-leader-lost",
    ),
    ConditionKind(
        "MANAGEMENT_STOPPED",
        Level.DEGRADED,
        "{node} takes part in the management group no more: {detail}",
        "nothing while most of its members are up; without them no node can join",
        "lockstep recovery cluster states cmg --global",
        "management-group-lost",
    ),
    ConditionKind(
        "CERTIFICATE_EXPIRES",
        Level.DEGRADED,
        "the certificate {subject} of {node} {detail}",
        "nothing; from that day on no new connection to it is made, and it does not start again",
        "renew the file, and restart the node",
        "certificate-expires",
    ),
)
#: Code -> what is told of it.
CONDITIONS: Final = {kind.code: kind for kind in _ROWS}
assert len(CONDITIONS) == len(_ROWS), "a code has one row"


def kind_of(condition: Condition) -> ConditionKind:
    """Its row; a newer release may report a code that this one does not know: as bad as DEGRADED."""
    known = CONDITIONS.get(condition.code)
    if known is not None:
        return known
    return ConditionKind(
        condition.code,
        Level.DEGRADED,
        "{node} reports " + condition.code + " {subject} {detail}",
        "unknown to this release",
        "ask node {id} itself: lockstep status --host",
        "README",
    )


def worst_first(condition: Condition) -> tuple[int, int, str, str]:
    """Key of the order in which conditions are shown: by level, then the oldest first."""
    return (-kind_of(condition).level, condition.since_us, condition.code, condition.subject)


def cut_text(text: str, bytes_max: int) -> str:
    """The text with at most so many bytes in UTF-8; what was cut off shows as an ellipsis."""
    assert bytes_max >= 3, "an ellipsis has three bytes"
    data = text.encode(errors="replace")
    if len(data) <= bytes_max:
        return data.decode()
    return data[: bytes_max - 3].decode(errors="ignore") + "…"


def fits(condition: Condition) -> bool:
    """Whether a node may have said this."""
    return (
        0 < len(condition.code.encode()) <= CONDITION_CODE_BYTES_MAX
        and len(condition.subject.encode()) <= CONDITION_SUBJECT_BYTES_MAX
        and len(condition.detail.encode()) <= CONDITION_DETAIL_BYTES_MAX
        and condition.since_us >= 0
    )
