"""`cms/1`, who votes on the metadata, how both groups fare, what changes, and what the log keeps;
`group-local-states/1` and `group-global-state/1`, what nodes say of the groups; `metadata-proof/1` and
`metadata-digest/1`, by what a node proves its log, and its value at an epoch; `metadata-log/1`,
`cms-snapshots/1` and `cms-dump/1`, what it keeps of both.
"""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType

from lockstep.documents.requests import Change, Waiting


class Member(msgspec.Struct, frozen=True):
    """A voter, or a node that becomes one. `state` is its own word, `reason` why there is none."""

    node: int
    address: str | None = None
    dc: str | None = None
    rack: str | None = None
    alive: bool = False
    leader: bool = False
    role: str = ""
    state: str | None = None
    epoch: int = 0
    lag: int = 0
    reason: str = ""


class ManagementState(msgspec.Struct, frozen=True):
    node: int
    role: str | None = None
    state: str | None = None


class Management(msgspec.Struct, frozen=True):
    state: str = ""
    leader: int | None = None
    term: int | None = None
    voters: tuple[int, ...] = ()
    outgoing: tuple[int, ...] = ()
    states: tuple[ManagementState, ...] = ()
    unavailable: tuple[int, ...] = ()


class RaftVoters(msgspec.Struct, frozen=True):
    """The configuration of the metadata group; `learners` are known to members only."""

    voters: tuple[int, ...] = ()
    outgoing: tuple[int, ...] = ()
    joint: bool = False
    learners: tuple[int, ...] | None = None


class VoterCount(msgspec.Struct, frozen=True):
    actual: int = 0
    wanted: int = 0
    set_by: str = ""


class VoterChange(msgspec.Struct, frozen=True):
    """A change of the voters that is under way."""

    id: int
    additions: tuple[int, ...] = ()
    removals: tuple[int, ...] = ()
    done: int = 0
    steps: int = 0
    cancelled: bool = False
    reason: str = ""


class KeptLog(msgspec.Struct, frozen=True):
    """What the asked node keeps of the metadata log, and its newest snapshot."""

    oldest_entry: int = 0
    oldest_value: int = 0
    bytes_since_snapshot: int = 0
    snapshot_epoch: int = 0
    truncated_epoch: int = 0
    snapshot_here: int | None = None
    snapshot_bytes: int | None = None
    snapshot_age_s: float | None = None


class Service(msgspec.Struct, frozen=True):
    schema: str = "cms/1"
    epoch: int = 0
    asked: int = 0
    role: str = ""
    leader: int | None = None
    term: int | None = None
    commit_index: int | None = None
    processor: str = ""
    recovery_generation: int = 0
    groups: dict[str, str] = {}
    members: tuple[Member, ...] = ()
    management: Management = Management()
    raft: RaftVoters = RaftVoters()
    size: VoterCount = VoterCount()
    state: str = ""
    change: VoterChange | None = None
    waiting: tuple[Waiting, ...] = ()
    frozen: str = ""
    paused: str = ""
    leaving: tuple[int, ...] = ()
    log: KeptLog = KeptLog()


class Voters(msgspec.Struct, frozen=True):
    """`cms-reconfiguration/1`: who votes and what changes. `size` is what an operator asked for, 0 for what
    the cluster's size asks, which is `target`."""

    schema: str = "cms-reconfiguration/1"
    epoch: int = 0
    leads: bool = False
    voters: tuple[int, ...] = ()
    size: int = 0
    target: int = 0
    change: VoterChange | None = None
    paused: str = ""
    frozen: str = ""
    leaving: tuple[int, ...] = ()
    waiting: tuple[Waiting, ...] = ()
    state: str = ""
    settled: bool = False


class ServicePlan(msgspec.Struct, frozen=True):
    """`cms-plan/1`: what a wish about the service would do; the voters are told where they would change."""

    schema: str = "cms-plan/1"
    epoch: int = 0
    voters: tuple[int, ...] | UnsetType = UNSET
    voters_after: tuple[int, ...] | UnsetType = UNSET
    additions: tuple[int, ...] | UnsetType = UNSET
    removals: tuple[int, ...] | UnsetType = UNSET
    steps: tuple[str, ...] = ()
    waits_for: str | UnsetType | None = UNSET
    changes: tuple[Change, ...] | UnsetType = UNSET
    way_back: str | UnsetType | None = UNSET


class LocalState(msgspec.Struct, frozen=True):
    """What one node says of its part; all but `reason` is null of one that does not answer."""

    node: int
    address: str = ""
    answered: bool = False
    state: str | None = None
    role: str | None = None
    term: int | None = None
    index: int | None = None
    epoch: int | None = None
    hash: str | None = None
    leader: int | None = None
    reason: str = ""


class LocalStates(msgspec.Struct, frozen=True):
    schema: str = "group-local-states/1"
    group: str = ""
    asked: int = 0
    states: tuple[LocalState, ...] = ()


class GroupMember(msgspec.Struct, frozen=True):
    node: int
    available: bool = False
    state: str | None = None
    reason: str = ""


class GlobalState(msgspec.Struct, frozen=True):
    """A group as a whole, from what its voters answered."""

    schema: str = "group-global-state/1"
    group: str = ""
    asked: int = 0
    state: str = ""
    voters: tuple[int, ...] = ()
    outgoing: tuple[int, ...] = ()
    available_peers: int = 0
    members: tuple[GroupMember, ...] = ()


class Problem(msgspec.Struct, frozen=True):
    """Where a chain of hashes is broken."""

    epoch: int
    reason: str


class Proof(msgspec.Struct, frozen=True):
    """`marks` are epochs and the hashes that were worked out anew for them."""

    schema: str = "metadata-proof/1"
    node: int = 0
    epoch: int = 0
    hash: str = ""
    oldest: int = 0
    oldest_value: int = 0
    problem: Problem | None = None
    broken: str | None = None
    marks: tuple[tuple[int, str], ...] = ()


class Digest(msgspec.Struct, frozen=True):
    schema: str = "metadata-digest/1"
    node: int = 0
    epoch: int = 0
    hash: str = ""
    digest: str = ""
    parts: dict[str, str] = {}


class LoggedEntry(msgspec.Struct, frozen=True):
    """An entry of the metadata log; `summary` says for people what it changed."""

    epoch: int
    entry_id: str = ""
    kind: str = ""
    actor: str = ""
    term: int = 0
    committed_at_us: int = 0
    previous_hash: str = ""
    hash: str = ""
    summary: str = ""


class LoggedEntries(msgspec.Struct, frozen=True):
    """`oldest` is the first epoch whose entry the node keeps."""

    schema: str = "metadata-log/1"
    oldest: int = 0
    first: int = msgspec.field(default=0, name="from")
    last: int = msgspec.field(default=0, name="to")
    entries: tuple[LoggedEntry, ...] = ()


class Snapshot(msgspec.Struct, frozen=True):
    epoch: int
    digest: str = ""
    hash: str = ""
    size_bytes: int = 0
    taken_at_us: int = 0


class Snapshots(msgspec.Struct, frozen=True):
    """`snapshot_epoch`, `truncated_epoch`: as the log has them; `truncated_here`: what was dropped."""

    schema: str = "cms-snapshots/1"
    epoch: int = 0
    first_epoch: int = 0
    snapshot_epoch: int = 0
    truncated_epoch: int = 0
    truncated_here: int = 0
    log_bytes: int = 0
    oldest_value: int = 0
    snapshots: tuple[Snapshot, ...] = ()


class DumpPiece(msgspec.Struct, frozen=True):
    """`data` is in base64, from byte `offset` of a file of `size_bytes`."""

    schema: str = "cms-dump/1"
    epoch: int = 0
    offset: int = 0
    size_bytes: int = 0
    data: str = ""
