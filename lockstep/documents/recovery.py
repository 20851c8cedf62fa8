"""`cluster-reset/1`, the plan of a repair of both groups and what became of it; `cluster-state/1`, which
incarnation of the cluster a node is of, and where it is in a repair; `cluster-migration/1`, which nodes go
to a repaired cluster; `group-restart/1`, whose members were started again; `group-reconfiguration/1`, what
members a group is to have; `recovery-audit/1`, what a node recorded of repairs; `metadata-held/1`, what a
node has that a repair may replace; `metadata-replacement/1`, the plan of one; `metadata-replacement-step/1`,
what a node did of it.
"""

from __future__ import annotations

import msgspec


class Participant(msgspec.Struct, frozen=True):
    """`epoch`: of the last entry it applied. `log_epoch`, `log_term`: of the last that is durable there."""

    node: int
    epoch: int = 0
    log_epoch: int = 0
    log_term: int = 0
    source: bool = False
    voter: bool = False
    manager: bool = False


class Absent(msgspec.Struct, frozen=True):
    node: int
    address: str = ""
    voted: bool = False
    reason: str = ""


class ClusterReset(msgspec.Struct, frozen=True):
    """`told`: participants that confirmed that they go on; the others do once they hear of it. `by_log`: the
    metadata group works, and decides the repair of the other group itself."""

    cluster_name: str
    former_id: str
    cluster_id: str
    digest: str
    dry_run: bool = False
    attempt: str = ""
    epoch: int = 0
    entries: int = 0
    source: int = 0
    voters: tuple[int, ...] = ()
    management: tuple[int, ...] = ()
    participants: tuple[Participant, ...] = ()
    absent: tuple[Absent, ...] = ()
    lost: str = ""
    told: tuple[int, ...] = ()
    by_log: bool = False
    #: Without groups: how members of the ring that is left agree.
    ring_mode: str = ""
    schema: str = "cluster-reset/1"


class Incarnation(msgspec.Struct, frozen=True):
    """One id that the cluster had. `epoch`: the last that it has in common with the one before."""

    cluster_id: str
    kind: str = ""
    actor: str = ""
    epoch: int = 0
    at_us: int = 0
    lost: str = ""
    #: Of its entry there.
    fork_hash: str = ""
    #: Of this link and all before it.
    hash: str = ""


class KnownHash(msgspec.Struct, frozen=True):
    epoch: int
    hash: str


class Place(msgspec.Struct, frozen=True):
    address: str
    port: int


class ClusterState(msgspec.Struct, frozen=True):
    """`phase`: idle, prepared, activated or migrating. `leader` 0: this node knows of none. `hashes`: of its
    log before repairs, by which nodes that were away are judged."""

    node: int
    cluster_name: str
    cluster_id: str
    epoch: int = 0
    leader: int = 0
    voters: tuple[int, ...] = ()
    management: tuple[int, ...] = ()
    lineage: tuple[Incarnation, ...] = ()
    phase: str = "idle"
    attempt: str = ""
    hashes: tuple[KnownHash, ...] = ()
    addresses: tuple[Place, ...] = ()
    schema: str = "cluster-state/1"


class MigratedNode(msgspec.Struct, frozen=True):
    """`refused`: why it stays; empty for one that goes. `diverged_at`: the first epoch at which it has
    another entry than the repaired cluster; 0: none is known. `answered` false: `refused` says why."""

    node: int
    epoch: int = 0
    refused: str = ""
    diverged_at: int = 0
    answered: bool = True
    #: At `diverged_at`, as far as they are known.
    own_hash: str = ""
    other_hash: str = ""
    #: Classes of the entries that only it has, and gives up.
    waived: str = ""
    #: It has no voice and serves nobody from now on; what it holds can be exported.
    zombie: bool = False


class ClusterMigration(msgspec.Struct, frozen=True):
    cluster_id: str
    dry_run: bool = False
    nodes: tuple[MigratedNode, ...] = ()
    schema: str = "cluster-migration/1"


class Restarted(msgspec.Struct, frozen=True):
    """`failed`: why the node is not back; those after it were not restarted."""

    node: int
    failed: str = ""


class GroupRestart(msgspec.Struct, frozen=True):
    group: str
    nodes: tuple[Restarted, ...] = ()
    schema: str = "group-restart/1"


class GroupReconfiguration(msgspec.Struct, frozen=True):
    """`follows`: the management group lives on the voters of the metadata group, whoever they are."""

    group: str
    epoch: int = 0
    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()
    follows: bool = False
    dry_run: bool = False
    schema: str = "group-reconfiguration/1"


class AuditRecord(msgspec.Struct, frozen=True):
    """`hash`: over the record and that of the one before it."""

    number: int
    at_us: int
    step: str
    actor: str = ""
    attempt: str = ""
    cluster_id: str = ""
    text: str = ""
    hash: str = ""


class RecoveryAudit(msgspec.Struct, frozen=True):
    """The newest records, oldest first; `total` is how many there are."""

    node: int
    total: int = 0
    records: tuple[AuditRecord, ...] = ()
    schema: str = "recovery-audit/1"


class HeldMetadata(msgspec.Struct, frozen=True):
    """`data` is what a plan is made from, in base64. `applies`: why it applies no more; empty while it does.
    `can_plan`: whether it can make the value that goes on. `planned`: the cluster id that a repair will give
    which it has prepared, by its `attempt`."""

    node: int
    cluster_id: str
    data: str
    epoch: int = 0
    broken: str = ""
    can_plan: bool = False
    phase: str = "idle"
    attempt: str = ""
    planned: str = ""
    schema: str = "metadata-held/1"


class DroppedEntry(msgspec.Struct, frozen=True):
    """`nodes`: who holds it."""

    epoch: int
    kind: str
    actor: str = ""
    at_us: int = 0
    committed: bool = False
    nodes: tuple[int, ...] = ()
    summary: str = ""


class MetadataReplacement(msgspec.Struct, frozen=True):
    """`plan` is what nodes are told, in base64. `epoch`: of the metadata that the plan brings. `more`:
    entries that go and are not shown."""

    kind: str
    cluster_name: str
    former_id: str
    cluster_id: str
    attempt: str
    plan: str
    epoch: int = 0
    dropped: tuple[DroppedEntry, ...] = ()
    more: int = 0
    voters: tuple[int, ...] = ()
    participants: tuple[int, ...] = ()
    absent: tuple[Absent, ...] = ()
    lost: str = ""
    schema: str = "metadata-replacement/1"


class DroppedCommand(msgspec.Struct, frozen=True):
    """`nodes`: who holds it."""

    index: int
    term: int
    kind: str
    actor: str = ""
    committed: bool = False
    nodes: tuple[int, ...] = ()
    summary: str = ""


class ManagementMember(msgspec.Struct, frozen=True):
    """`broken`: why it applies no more. `snapshot`: up to which index its first state reaches. `can_plan`: it
    can make the state before what goes."""

    node: int
    applied: int = 0
    committed: int = 0
    last: int = 0
    snapshot: int = 0
    can_plan: bool = False
    broken: str = ""


class ManagementTruncation(msgspec.Struct, frozen=True):
    """`source`: whose state goes on; 0 where only the metadata say what was before. `digest` names the plan.
    `admitted`: newcomers that the state lets in and no metadata names. `inside`: commands that go and that
    only snapshots hold. `more`: commands that go and are not shown."""

    former_id: str
    cluster_id: str
    digest: str
    index: int
    last: int
    source: int = 0
    dropped: tuple[DroppedCommand, ...] = ()
    inside: int = 0
    more: int = 0
    members: tuple[ManagementMember, ...] = ()
    silent: tuple[Absent, ...] = ()
    admitted: tuple[str, ...] = ()
    voters: tuple[int, ...] = ()
    management: tuple[int, ...] = ()
    absent: tuple[int, ...] = ()
    lost: str = ""
    decided: bool = False
    schema: str = "management-truncation/1"


class ReplacementStep(msgspec.Struct, frozen=True):
    node: int
    schema: str = "metadata-replacement-step/1"


class ExportedPage(msgspec.Struct, frozen=True):
    """`recovery-export/1`: rows that one node alone holds of a table, as CQL statements or as values. `end`:
    where the next page begins; empty for the last one.

    With values, `table` is the encoded `ScanTable` in base64, and `rows` are of its columns in order: what
    is on the wire, in base64. `written_us`: the newest write time of each row."""

    node: int
    epoch: int
    statements: tuple[str, ...] = ()
    end: str = ""
    table: str = ""
    rows: tuple[tuple[str | None, ...], ...] = ()
    written_us: tuple[int, ...] = ()
    schema: str = "recovery-export/1"
