"""`backup-run/1`, `backups/1`, `repair/1`, `repairs/1`, `repair-plan/1` and the plans of backups and
restores, `loads/1`, `load-end/1`, `reconcile/1`, `reconcile-audit/1`, `read-sessions/1`,
`read-session-list/1`, `read-session-end/1`: what runs or ended lately, and what one would do.
"""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType

from lockstep.documents.requests import Change


class RunProgress(msgspec.Struct, frozen=True):
    """What the driver of a backup or restore has counted."""

    name: str = ""
    backup_id: str = ""
    parts: int = 0
    parts_done: int = 0
    bytes: int = 0
    files: int = 0


class BackupRun(msgspec.Struct, frozen=True):
    """A backup or a restore that runs or ended lately."""

    schema: str = "backup-run/1"
    id: int = 0
    purpose: str = ""
    state: str = ""
    driver: int = 0
    began_epoch: int = 0
    began_s: int = 0
    ended_s: int | None = None
    reason: str | None = None
    progress: RunProgress | None = None


class KeptPart(msgspec.Struct, frozen=True):
    """A node's part; `of` are the host ids whose parts the backup has, `problem` says why it is no part."""

    node: int
    host_id: str
    backup_id: str | None = None
    bytes: int = 0
    began_us: int | None = None
    of: tuple[str, ...] = ()
    problem: str | None = None


class KeptBackup(msgspec.Struct, frozen=True):
    name: str
    parts: tuple[KeptPart, ...] = ()
    complete: bool = False
    missing: tuple[str, ...] = ()
    bytes: int = 0
    began_us: int | None = None


class Backups(msgspec.Struct, frozen=True):
    """`silent` are nodes that could not be asked."""

    schema: str = "backups/1"
    backups: tuple[KeptBackup, ...] = ()
    silent: tuple[int, ...] = ()


class Removed(msgspec.Struct, frozen=True):
    schema: str = "backup-removed/1"
    name: str = ""
    parts: int = 0
    bytes: int = 0
    silent: tuple[int, ...] = ()


class PlannedPart(msgspec.Struct, frozen=True):
    node: int
    bytes_at_most: int | None = None


class BackupPlan(msgspec.Struct, frozen=True):
    schema: str = "backup-plan/1"
    name: str = ""
    refused: str | None = None
    tables: tuple[str, ...] = ()
    nodes: tuple[PlannedPart, ...] = ()
    absent: tuple[int, ...] = ()
    steps: tuple[str, ...] = ()
    way_back: str = ""


class Source(msgspec.Struct, frozen=True):
    """A node that serves the parts of these hosts."""

    node: int
    host_ids: tuple[str, ...] = ()


class RestoredTable(msgspec.Struct, frozen=True):
    table: str
    bytes: int = 0
    action: str = ""


class RestorePlan(msgspec.Struct, frozen=True):
    schema: str = "restore-plan/1"
    name: str = ""
    cluster: str = ""
    epoch: int = 0
    began_us: int = 0
    absent: tuple[str, ...] = ()
    sources: tuple[Source, ...] = ()
    tables: tuple[RestoredTable, ...] = ()
    steps: tuple[str, ...] = ()
    way_back: str = ""


class WaitedFor(msgspec.Struct, frozen=True):
    """How many ids participants of a repair still lack of a range of tracked tables."""

    group: int
    left: int
    right: int
    lacking: int = 0


class Lacks(msgspec.Struct, frozen=True):
    node: int
    count: int = 0


class Disagreement(msgspec.Struct, frozen=True):
    """A partition of a tracked table: nodes that lack rows which all hold by id. `key` is in hex, `wrong` is
    data or ids."""

    keyspace: str
    table: str
    range: tuple[int, int]
    token: int = 0
    key: str = ""
    lacks: tuple[Lacks, ...] = ()
    holds: tuple[int, ...] = ()
    wrong: str = "data"


class RepairProgress(msgspec.Struct, frozen=True):
    """What the repair's driver has counted."""

    ranges: int = 0
    ranges_done: int = 0
    ranges_failed: int = 0
    leaves: int = 0
    leaves_different: int = 0
    changes_sent: int = 0
    bytes_sent: int = 0
    full: bool = False
    ids_lacking: int = 0
    waits_for: tuple[WaitedFor, ...] = ()
    disagreements: int = 0
    disagree: tuple[Disagreement, ...] = ()


class RepairedPart(msgspec.Struct, frozen=True):
    keyspace: str
    tables: tuple[str, ...] = ()
    ranges: tuple[tuple[int, int], ...] = ()


class Repair(msgspec.Struct, frozen=True):
    schema: str | UnsetType = UNSET
    id: int = 0
    purpose: str = "repair"
    state: str = ""
    incremental: bool = False
    driver: int = 0
    hosts: tuple[int, ...] = ()
    keyspaces: tuple[RepairedPart, ...] = ()
    began_epoch: int = 0
    ended_epoch: int | None = None
    began_s: int = 0
    ended_s: int | None = None
    reason: str | None = None
    progress: RepairProgress | None = None


class Repairs(msgspec.Struct, frozen=True):
    schema: str = "repairs/1"
    repairs: tuple[Repair, ...] = ()


class RepairPlannedPart(msgspec.Struct, frozen=True):
    keyspace: str
    tables: tuple[str, ...] = ()
    ranges: int = 0


class Participant(msgspec.Struct, frozen=True):
    """A replica and what it compares; null where it did not say."""

    node: int
    bytes: int | None = None


class RepairPlan(msgspec.Struct, frozen=True):
    schema: str = "repair-plan/1"
    refused: str | None = None
    incremental: bool = False
    driver: int = 0
    keyspaces: tuple[RepairPlannedPart, ...] = ()
    participants: tuple[Participant, ...] = ()
    steps: tuple[str, ...] = ()
    way_back: str = ""
    records: str = ""
    changes: tuple[Change, ...] = ()


class LoadRun(msgspec.Struct, frozen=True):
    """A bulk load. `phase` is what it does as the asked node sees it: begun, staging, taking in, or how it
    ended. `staged` is what that node holds of it; rows and bytes are known once it was committed."""

    job: str
    keyspace: str = ""
    table: str = ""
    state: str = ""
    phase: str = ""
    overwrites: bool = False
    began_ms: int = 0
    age_s: float = 0.0
    lease_left_s: float | None = None
    began_epoch: int = 0
    ended_epoch: int | None = None
    rows: int = 0
    bytes: int = 0
    staged_files: int = 0
    staged_bytes: int = 0
    reason: str = ""


class Loads(msgspec.Struct, frozen=True):
    schema: str = "loads/1"
    node: int = 0
    epoch: int = 0
    loads: tuple[LoadRun, ...] = ()


class LoadEnd(msgspec.Struct, frozen=True):
    """A load that an operator cancelled, or would cancel."""

    schema: str = "load-end/1"
    dry_run: bool = False
    load: LoadRun = LoadRun("")


class ReadSessionRun(msgspec.Struct, frozen=True):
    """A content of one node that a job reads a whole table from; `opened` is in milliseconds."""

    id: str
    keyspace_name: str = ""
    table_name: str = ""
    epoch: int = 0
    opened: int = 0
    lease_ms: int = 0
    lease_left_ms: int = 0


class ReplicaLag(msgspec.Struct, frozen=True):
    """What another replica of a tracked range lacks of what the asked node holds, and the other way round.
    `lacks_bytes` and `left_s` are estimates; `left_s` None: nothing says when it will have all. `table`: of
    which it is a tablet, as KEYSPACE.TABLE; empty for a range of the ring. `witness`: it has no tables, and
    needs nothing that all others hold."""

    placement_group: int
    last_token: int
    node: int
    alive: bool = False
    heard: bool = False
    lacks: int = 0
    lacks_bytes: int = 0
    lacks_s: int | None = None
    is_lacked: int = 0
    left_s: int | None = None
    table: str = ""
    witness: bool = False


class Reconciling(msgspec.Struct, frozen=True):
    """The journal of the node that is asked, and what replicas lack. `in_cohorts`: mutations that lie in its
    tables alone while a replica is away; `getting`: ranges of which it gets what it missed itself;
    `witnessed`: of the entries, those of ranges whose witness it is, about so many bytes of at most
    `witness_bytes_max`."""

    schema: str = "reconcile/1"
    node: int = 0
    ranges: int = 0
    entries: int = 0
    entry_bytes: int = 0
    reconciled: int = 0
    pulled: int = 0
    lags: tuple[ReplicaLag, ...] = ()
    in_cohorts: int = 0
    getting: int = 0
    witnessed: int = 0
    witness_bytes: int = 0
    witness_bytes_max: int = 0


class DifferingMutation(msgspec.Struct, frozen=True):
    """A mutation of which the asked node and `node` hold other content. `given_by`, `start` and `offset` are
    its id."""

    placement_group: int
    last_token: int
    node: int
    given_by: int
    start: int
    offset: int


class SilentReplica(msgspec.Struct, frozen=True):
    node: int
    reason: str = ""


class ReconcileAudit(msgspec.Struct, frozen=True):
    """Entries of the asked node's journal beside those of each other replica. `compared` counts each once for
    each other one; `ended`: all were."""

    schema: str = "reconcile-audit/1"
    node: int = 0
    ranges: int = 0
    compared: int = 0
    ended: bool = True
    differing: tuple[DifferingMutation, ...] = ()
    silent: tuple[SilentReplica, ...] = ()


class ReadSessions(msgspec.Struct, frozen=True):
    """Those of the node that is asked."""

    schema: str = "read-sessions/1"
    node: int = 0
    read_sessions: tuple[ReadSessionRun, ...] = ()


class ListedReadSession(msgspec.Struct, frozen=True):
    """A read session at all nodes that have it; its lease ends where the last of them says."""

    id: str
    keyspace: str
    table: str
    epoch: int
    opened_ms: int
    lease_left_ms: int
    nodes: tuple[int, ...]


class SilentNode(msgspec.Struct, frozen=True):
    node: int
    why: str


class ReadSessionList(msgspec.Struct, frozen=True):
    """`unanswered`: the nodes that may have more."""

    schema: str = "read-session-list/1"
    sessions: tuple[ListedReadSession, ...] = ()
    unanswered: tuple[SilentNode, ...] = ()


class ReadSessionEnd(msgspec.Struct, frozen=True):
    """A read session that was ended at `nodes`, or with `dry_run` would be."""

    schema: str = "read-session-end/1"
    id: str = ""
    dry_run: bool = False
    nodes: tuple[int, ...] = ()
    unanswered: tuple[SilentNode, ...] = ()
