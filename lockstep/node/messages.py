"""Bodies of the node-to-node messages that concern metadata, membership and topology work."""

from __future__ import annotations

import msgspec

from lockstep.metadata.entries import LogEntry
from lockstep.metadata.operations import Stage


class Submit(msgspec.Struct, frozen=True, array_like=True):
    """A transformation for the leader to judge. `base_epoch` is the submitter's epoch at first sending.

    Only the leader of `term` judges it: a copy that is late or doubled is then too late for any later
    leader, which could accept what was refused. 0 asks which term to name.
    """

    entry_id: bytes
    kind: int
    body: bytes
    actor: str
    base_epoch: int
    term: int = 0


class Submitted(msgspec.Struct, frozen=True, array_like=True):
    """The entry is committed at `epoch` (the first one, when the id had been seen before).

    Epoch 0: nothing was judged, for this node leads in `term`.
    """

    epoch: int
    term: int = 0


class FetchLog(msgspec.Struct, frozen=True, array_like=True):
    after: int


class LogEntries(msgspec.Struct, frozen=True, array_like=True):
    """Committed and durable entries that follow the asked epoch; `epoch` is the answering node's."""

    epoch: int
    entries: tuple[LogEntry, ...]


class Announce(msgspec.Struct, frozen=True, array_like=True):
    """The sender has applied `epoch`, whose hash is `hash`: a receiver sees whether it is of one history."""

    epoch: int = 0
    hash: bytes = b""


class EpochQuery(msgspec.Struct, frozen=True, array_like=True):
    """Apply `epoch`; with `drain`, also finish what was accepted under older epochs. Then answer."""

    epoch: int
    drain: bool = False


class EpochReply(msgspec.Struct, frozen=True, array_like=True):
    epoch: int


class DescribeSelf(msgspec.Struct, frozen=True, array_like=True):
    """Asked by the leader of a founding cluster; `founders` must be the same list everywhere."""

    founders: tuple[str, ...]


class SelfDescription(msgspec.Struct, frozen=True, array_like=True):
    host_id: str
    address: str
    internode_port: int
    cql_port: int
    admin_port: int
    dc: str
    rack: str
    version: str
    num_tokens: int
    epoch: int
    #: Of the cluster it belongs to, and whether that one has the asker in its directory.
    cluster_id: str = ""
    knows_asker: bool = False
    #: Host ids of all founders, once this one is bound to them.
    bound: tuple[str, ...] = ()


class RunWork(msgspec.Struct, frozen=True, array_like=True):
    """Do (or go on with) the work of one stage; answered when done, failed, or after a short wait."""

    operation_id: int
    stage: Stage
    session_id: str
    epoch: int


class WorkStatus(msgspec.Struct, frozen=True, array_like=True):
    """state: running, done or failed; units are bytes and fragments moved so far."""

    state: str
    text: str = ""
    moved_bytes: int = 0
    moved_fragments: int = 0


class Ping(msgspec.Struct, frozen=True, array_like=True):
    """A sign of life; question and answer alike. `leads`: the sender leads the metadata group."""

    generation: int
    leads: bool = False
