"""Owns `lockstep.toml`: its sections, their defaults, and the refusal of everything else.

Invariant: a Configuration that `parse` returned is complete and consistent; no other module repairs a
setting. Text and environment are passed in, so this module reads neither files nor the process.

Precedence: the environment variable `LOCKSTEP_<SECTION>_<KEY>`, then the file, then the default.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

import msgspec

from lockstep.metadata.directory import SUPPORTED
from lockstep.node import settings
from lockstep.node.settings import (
    AdminSection,
    AuditSection,
    AuthSection,
    LogSection,
    TlsSection,
    problem,
    secret_problem,
)
from lockstep.values.errors import ConfigurationError
from lockstep.values.limits import STREAM_FILE_BYTES, TOKENS_PER_NODE_MAX
from lockstep.values.node_limits import TARGET_TABLET_BYTES

#: Founders wait for each other, and the loss of any one during that time stops all: enough for a rack of
#: machines that are set up together, while larger clusters grow by nodes that join.
FOUNDERS_MAX: Final = 16
ENVIRONMENT_PREFIX: Final = "LOCKSTEP_"

Port = Annotated[int, msgspec.Meta(ge=1, le=65535)]
#: From one millisecond to one hour: beyond it a client has long given up.
TimeoutMs = Annotated[int, msgspec.Meta(ge=1, le=3_600_000)]
#: Names become directory names and CQL values, so they hold nothing that either would quote.
Name = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=100)]
OptionalName = Annotated[str, msgspec.Meta(pattern=r"^([A-Za-z0-9][A-Za-z0-9._-]*)?$", max_length=100)]
Host = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9.-]*$", max_length=253)]


class NodeSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`name` is for people; identity comes from the metadata log. Empty: made from the address."""

    name: OptionalName = ""
    data_directory: str = ""


class ClusterSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How the node finds its cluster. A node whose own address is among the founders founds it.

    `replaces`: the id of a dead node whose place and tokens a new node takes, maybe at its address; 0 joins
    beside the others. `join_secret`: what nodes prove to each other that they know, the same for all nodes
    of a cluster; of several words the first is proved and any is accepted. `join_secret_file` holds it.
    `membership`: whether the cluster has a log, or runs on the ring without one; `ring_mode` then says who
    agrees on each change, a majority of the members or all of them. All nodes say the same.
    """

    name: Name = "lockstep"
    founders: tuple[str, ...] = ()
    seeds: tuple[str, ...] = ()
    join: bool = True
    replaces: Annotated[int, msgspec.Meta(ge=0)] = 0
    join_secret: str = ""
    join_secret_file: str = ""
    membership: Literal["log", "ring"] = "log"
    ring_mode: Literal["quorum", "unanimous"] = "quorum"

    @property
    def is_on_ring(self) -> bool:
        return self.membership == "ring"


class NetworkSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    address: Host = "127.0.0.1"
    internode_port: Port = 7000
    cql_port: Port = 9042
    admin_port: Port = 7080


class PlacementSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    dc: Name = "dc1"
    rack: Name = "rack1"
    num_tokens: Annotated[int, msgspec.Meta(ge=0, le=TOKENS_PER_NODE_MAX)] = 16


class TimeoutsSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    write_ms: TimeoutMs = 2000
    read_ms: TimeoutMs = 5000
    range_read_ms: TimeoutMs = 10_000
    metadata_ms: TimeoutMs = 10_000
    cas_contention_ms: TimeoutMs = 1000


class ReadsSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What clients are told of expensive reads. Tombstones are counted for each page on each replica, bytes
    for each page at its coordinator; 0 turns a threshold off."""

    tombstone_warn_threshold: Annotated[int, msgspec.Meta(ge=0, le=1_000_000_000)] = 1000
    tombstone_failure_threshold: Annotated[int, msgspec.Meta(ge=0, le=1_000_000_000)] = 100_000
    coordinator_read_size_warn_bytes: Annotated[int, msgspec.Meta(ge=0, le=1 << 40)] = 0
    coordinator_read_size_fail_bytes: Annotated[int, msgspec.Meta(ge=0, le=1 << 40)] = 0


class WritesSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Batches over several partitions, by the data they write; 0 turns a threshold off. The defaults are
    Cassandra's: a large batch makes one coordinator do the work of many."""

    batch_size_warn_threshold_bytes: Annotated[int, msgspec.Meta(ge=0, le=1 << 40)] = 5 * 1024
    batch_size_fail_threshold_bytes: Annotated[int, msgspec.Meta(ge=0, le=1 << 40)] = 50 * 1024


class RaftSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An election starts after `election_ticks` to twice that many ticks without a leader."""

    tick_ms: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 50
    election_ticks: Annotated[int, msgspec.Meta(ge=2, le=1000)] = 10
    heartbeat_ticks: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 2


class MetadataSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """When the metadata is snapshot, and how much of its log this node keeps.

    A node that starts or joins applies what came since: some 0.1 ms an entry. A snapshot of a thousand tables
    is written in 2 ms and read in 10. 0 turns either trigger off.
    """

    snapshot_every_epochs: Annotated[int, msgspec.Meta(ge=0, le=1_000_000_000)] = 500
    #: Or earlier, when the entries since the last snapshot are this large.
    snapshot_every_bytes: Annotated[int, msgspec.Meta(ge=0, le=1 << 40)] = 16 * 1024 * 1024
    #: Newest entries that stay in memory and on disk, for peers that are behind and for people; they go in
    #: whole segments (from one snapshot to the next), so somewhat more stay.
    retain_entries: Annotated[int, msgspec.Meta(ge=0, le=1_000_000_000)] = 10_000
    #: Two, so that an unreadable one can be stepped back from.
    retain_snapshots: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 2
    #: Where segments and snapshots go before they are removed; of this node alone. Empty: nowhere.
    archive_directory: str = ""
    #: The metadata turns read-only when so many per cent of the nodes vanish at once, until they are back or
    #: `lockstep cms thaw` accepts that they are gone; 0 turns that off. The same on all nodes.
    vanish_percent: Annotated[int, msgspec.Meta(ge=0, le=100)] = 0
    #: What counts as at once.
    vanish_window_ms: Annotated[int, msgspec.Meta(ge=1, le=3_600_000)] = 10_000


class StreamingSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Moving ranges to other nodes.

    `throughput_bytes_s`: what this node sends at most over all streams, 0 for no bound. By default 24 MiB,
    which operators know from Cassandra: a fifth of a gigabit line, and a tenth of what one core can build and
    send, so that requests keep the rest.
    """

    throughput_bytes_s: Annotated[int, msgspec.Meta(ge=0, le=1 << 40)] = 24 * 1024 * 1024
    #: Where a sorted file ends. A smaller one costs less when a stream breaks and its source is gone.
    file_bytes: Annotated[int, msgspec.Meta(ge=256, le=1 << 30)] = STREAM_FILE_BYTES


class ReadSessionsSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Reading whole tables from a content that was fixed at one instant.

    `port`: where readers are answered, at network.address; 0: any that is free, which clients are told.
    `column_files_mib`: room on the disk for columns that readers decoded, for those who read the same again;
    0: none are kept.
    """

    port: Annotated[int, msgspec.Meta(ge=0, le=65_535)] = 0
    column_files_mib: Annotated[int, msgspec.Meta(ge=0, le=1024 * 1024)] = 1024


class StorageSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`commitlog_sync`: with batch, a write is acknowledged when it is on the disk; with periodic, at once,
    and a crash may lose what was acknowledged during the last `commitlog_sync_period_ms`.

    `reserve_bytes`: with less free on the disk writes are refused and reads go on. Twice what the store's own
    log may take; 0 never looks.
    """

    commitlog_sync: Literal["batch", "periodic"] = "batch"
    commitlog_sync_period_ms: Annotated[int, msgspec.Meta(ge=1, le=3_600_000)] = 10_000
    reserve_bytes: Annotated[int, msgspec.Meta(ge=0, le=1 << 50)] = 128 * 1024 * 1024

    @property
    def period_ms(self) -> int:
        """Between two syncs that nobody waits for; 0: everybody waits."""
        return self.commitlog_sync_period_ms if self.commitlog_sync == "periodic" else 0


class HintsSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Writes that are kept for replicas that did not acknowledge them.

    A node that is away for longer than `max_hint_window_ms` needs a repair anyway, and by then hints would
    cost more than it. `throttle_bytes_s`: what this node replays at most, 0 for no bound; by default 1 MiB,
    as in Cassandra, for who is back has enough to do.
    """

    hinted_handoff_enabled: bool = True
    max_hint_window_ms: Annotated[int, msgspec.Meta(ge=0, le=604_800_000)] = 10_800_000
    max_bytes_per_node: Annotated[int, msgspec.Meta(ge=0, le=1 << 40)] = 1024 * 1024 * 1024
    max_bytes: Annotated[int, msgspec.Meta(ge=0, le=1 << 40)] = 4 * 1024 * 1024 * 1024
    throttle_bytes_s: Annotated[int, msgspec.Meta(ge=0, le=1 << 40)] = 1024 * 1024


class PurgeSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Merging and purging in the background.

    A table is gone through once in a tenth of its grace time, once a day at least, and not sooner again than
    after `interval_ms`.
    """

    interval_ms: Annotated[int, msgspec.Meta(ge=1000, le=86_400_000)] = 60_000


class TrackingSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Replicas of tracked tables. `cohort_after_ms`: one that does not answer for so long, and seems dead, is
    away: the others let go of the single mutations that all of them hold. A start takes seconds, and who is
    back sooner gets single mutations, which is cheaper. `witness_journal_mib`: what this node keeps at most
    as a witness while a full replica is away; 16 GiB are a day of some 200 writes of 1 KiB a second."""

    cohort_after_ms: Annotated[int, msgspec.Meta(ge=1000, le=604_800_000)] = 600_000
    witness_journal_mib: Annotated[int, msgspec.Meta(ge=1, le=16_777_216)] = 16_384


class CmsSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`processor`: what makes log entries of changes on this node. raft (it may be chosen as a voter), remote
    (it never is, and forwards), local (it is the whole service of a cluster that it founds alone), or a kind
    that another package brings. `replace_after_ms`: a voter that the metadata leader cannot reach for longer
    is substituted as voter by another node, at most a week; 0 leaves that to operators."""

    processor: Name = "raft"
    replace_after_ms: Annotated[int, msgspec.Meta(ge=0, le=604_800_000)] = 0


class GossipSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`phi_threshold`: how unlikely a silence must be (one in ten to this power) before a node is suspected.
    At 8, one that is asked every half second may miss three messages; where pauses are long and harmless, as
    on machines that are shared, 10 to 12 suspect fewer."""

    phi_threshold: Annotated[float, msgspec.Meta(ge=1, le=30)] = 8.0


class ClockSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Clocks of nodes that differ. `skew_warn_ms`: further from the middle of all clocks is a condition of
    the node; NTP keeps clocks much closer. `skew_fail_ms`: a new node that is further from every member does
    not join, and clients of a node that is further from the middle are warned."""

    skew_warn_ms: Annotated[int, msgspec.Meta(ge=10, le=3_600_000)] = 500
    skew_fail_ms: Annotated[int, msgspec.Meta(ge=100, le=86_400_000)] = 10_000


class TopologySection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What barriers of topology operations may let go. `barrier_minimum_level`: with quorum, a barrier that
    has waited for `barrier_relax_after_ms` for nothing but quorums within data centres goes on with the one
    over all of them; requests at LOCAL_QUORUM and EACH_QUORUM in the data centres that lack theirs may then
    miss each other. off: it waits for ever. The metadata leader's settings count."""

    barrier_minimum_level: Literal["off", "quorum"] = "off"
    barrier_relax_after_ms: Annotated[int, msgspec.Meta(ge=1000, le=604_800_000)] = 600_000

    @property
    def relax_after_ms(self) -> int | None:
        """How long a barrier waits for quorums within data centres; None for ever."""
        return None if self.barrier_minimum_level == "off" else self.barrier_relax_after_ms


class TabletsSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Whether tables spread by tablets. `mode_for_new_keyspaces`, for those that do not say it themselves and
    are replicated per data centre: disabled, they lie on the ring; enabled, they have tablets; enforced, a
    keyspace on the ring is refused. The settings of the node that a client asks count. `load_refresh_ms`: how
    often the metadata leader asks nodes what they hold. `target_size_bytes` of one tablet: a table splits its
    tablets when they are more than twice as large on average, and merges them below half of it. Of both, the
    leader's own setting counts."""

    mode_for_new_keyspaces: Literal["disabled", "enabled", "enforced"] = "disabled"
    load_refresh_ms: Annotated[int, msgspec.Meta(ge=100, le=3_600_000)] = 10_000
    target_size_bytes: Annotated[int, msgspec.Meta(ge=1024, le=1 << 50)] = TARGET_TABLET_BYTES


class FunctionsSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """User functions. Off by default: whoever may create one has the nodes run a program, which costs
    processor time and memory, and may hold a way out of its sandbox that nobody knows yet.
    `user_defined_functions_fail_timeout_ms`: for one evaluation of up to a thousand calls.
    `unfiltered_workers_allowed`: also where the kernel cannot filter the system calls of workers."""

    user_defined_functions_enabled: bool = False
    user_defined_functions_fail_timeout_ms: Annotated[int, msgspec.Meta(ge=1, le=60_000)] = 1500
    unfiltered_workers_allowed: bool = False


class TestingSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`faults` opens the admin calls that cut connections, and the other settings here. Never set it where
    data matters. `hide_kinds`: kinds of metadata entries that this node does not know, as if its version
    lacked them; `hide_commands` the same of commands of the management group. `log_version`: the version of
    the log that it says it reads; -1 for its own. `hidden_features`: features that it acts as if its version
    did not support. `mirror_payloads`: answers have their requests' custom payloads, for tests of clients."""

    faults: bool = False
    hide_kinds: tuple[str, ...] = ()
    hide_commands: tuple[Literal["admit", "expel", "record_voters"], ...] = ()
    log_version: Annotated[int, msgspec.Meta(ge=-1, le=1000)] = -1
    hidden_features: tuple[str, ...] = ()
    mirror_payloads: bool = False


class Configuration(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Everything one node is told from outside."""

    node: NodeSection = NodeSection()
    cluster: ClusterSection = ClusterSection()
    network: NetworkSection = NetworkSection()
    auth: AuthSection = AuthSection()
    tls: TlsSection = TlsSection()
    admin: AdminSection = AdminSection()
    placement: PlacementSection = PlacementSection()
    timeouts: TimeoutsSection = TimeoutsSection()
    reads: ReadsSection = ReadsSection()
    writes: WritesSection = WritesSection()
    raft: RaftSection = RaftSection()
    metadata: MetadataSection = MetadataSection()
    purge: PurgeSection = PurgeSection()
    tracking: TrackingSection = TrackingSection()
    cms: CmsSection = CmsSection()
    streaming: StreamingSection = StreamingSection()
    read_sessions: ReadSessionsSection = ReadSessionsSection()
    storage: StorageSection = StorageSection()
    hints: HintsSection = HintsSection()
    gossip: GossipSection = GossipSection()
    clock: ClockSection = ClockSection()
    topology: TopologySection = TopologySection()
    tablets: TabletsSection = TabletsSection()
    functions: FunctionsSection = FunctionsSection()
    testing: TestingSection = TestingSection()
    log: LogSection = LogSection()
    audit: AuditSection = AuditSection()

    @property
    def internode_address(self) -> str:
        """Own `host:port` as other nodes dial it."""
        return f"{self.network.address}:{self.network.internode_port}"

    @property
    def admin_host(self) -> str:
        """Where the admin port listens."""
        return self.admin.address or self.network.address

    @property
    def features(self) -> tuple[str, ...]:
        """What this node supports, sorted."""
        return tuple(name for name in SUPPORTED if name not in self.testing.hidden_features)

    @property
    def is_founder(self) -> bool:
        return self.internode_address in self.cluster.founders


#: section -> key -> type, for unknown keys, close matches and the environment.
_SECTIONS: Final[dict[str, dict[str, Any]]] = {
    section.name: {field.name: field.type for field in msgspec.structs.fields(section.type)}
    for section in msgspec.structs.fields(Configuration)
}


def parse(
    text: str, environment: Mapping[str, str] | None = None, *, source: str = "lockstep.toml"
) -> Configuration:
    """The configuration that `text` and `environment` describe, with every default filled in.

    Addresses in `cluster.founders` and `cluster.seeds` come back as `host:port`, and the node has a
    name and a data directory. `source` names the text in errors. Raises ConfigurationError.
    """
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigurationError(f"{source} is not TOML: {error}") from error
    _refuse_unknown(document, source)
    for (section, key), value in _overlay(environment or {}).items():
        document.setdefault(section, {})[key] = value
    try:
        written = msgspec.convert(document, Configuration)
    except msgspec.ValidationError as error:
        sentence, _, path = str(error).partition(" - at `$.")
        where = path.rstrip("`") or "the file"
        raise ConfigurationError(f"{source}: {where}: {sentence[0].lower()}{sentence[1:]}") from error
    _refuse_nul(written, source)
    complete = _completed(written, source)
    _check(complete, source)
    return complete


def render(configuration: Configuration) -> str:
    """TOML text that `parse` reads back to an equal value (once complete)."""
    tables: dict[str, settings.Table] = msgspec.to_builtins(configuration)
    return settings.emit(tables)


def with_join_secret(configuration: Configuration, content: bytes) -> Configuration:
    """The configuration with what its `join_secret_file` holds. ConfigurationError when that is no secret."""
    file = configuration.cluster.join_secret_file
    text = content.decode("utf-8", "replace")
    weak = secret_problem(text or " ")
    if weak is not None:
        raise ConfigurationError(f"cluster.join_secret_file: {file}: {weak[0]}", hint=weak[1])
    cluster = msgspec.structs.replace(configuration.cluster, join_secret=text)
    return msgspec.structs.replace(configuration, cluster=cluster)


def split_address(text: str, default_port: int) -> tuple[str, int]:
    """Host and port of `host` or `host:port`. ConfigurationError when it is neither."""
    host, colon, digits = text.partition(":")
    port = int(digits) if digits.isdecimal() else (0 if colon else default_port)
    if not host or host != host.strip() or not 1 <= port <= 65535:
        raise ConfigurationError(f"`{text}` is not an address", hint="write it as host or host:port")
    return host, port


def _refuse_unknown(document: dict[str, Any], source: str) -> None:
    for section, content in document.items():
        if section not in _SECTIONS:
            raise ConfigurationError(
                f"{source}: unknown section [{section}]", hint=_suggestion(section, list(_SECTIONS))
            )
        if not isinstance(content, dict):
            raise ConfigurationError(
                f"{source}: {section} is a section, not a value", hint=f"write [{section}] on its own line"
            )
        for key in content:
            if key not in _SECTIONS[section]:
                raise ConfigurationError(
                    f"{source}: unknown key {section}.{key}",
                    hint=_suggestion(key, list(_SECTIONS[section]), prefix=f"{section}."),
                )


def _refuse_nul(written: Configuration, source: str) -> None:
    """No name, address or path can hold a NUL; the operating system would cut it off or fail there."""
    sections: dict[str, dict[str, Any]] = msgspec.to_builtins(written)
    for section, keys in sections.items():
        for key, value in keys.items():
            texts = value if isinstance(value, list | tuple) else (value,)
            if any(isinstance(text, str) and "\x00" in text for text in texts):
                raise ConfigurationError(
                    f"{source}: {section}.{key} holds a NUL character",
                    hint="remove it: `\\u0000` in TOML, or what a script put into the environment",
                )


def _close_to(word: str, known: list[str], cutoff: float = 0.6) -> list[str]:
    """At most one. What tells it is loaded for a mistake only: nodes keep all their lives what they load."""
    import difflib

    return difflib.get_close_matches(word, known, n=1, cutoff=cutoff)


def _suggestion(word: str, known: list[str], prefix: str = "") -> str:
    close = _close_to(word, known)
    if close:
        return f"did you mean {prefix}{close[0]}?"
    return "known here: " + ", ".join(known)


def _overlay(environment: Mapping[str, str]) -> dict[tuple[str, str], Any]:
    """Values from `LOCKSTEP_<SECTION>_<KEY>`, converted to the type of their key.

    Other variables with the prefix belong to other tools, unless the section looks mistyped.
    """
    values: dict[tuple[str, str], Any] = {}
    for variable in sorted(environment):
        section, separator, key = variable.removeprefix(ENVIRONMENT_PREFIX).lower().partition("_")
        if not variable.startswith(ENVIRONMENT_PREFIX) or not separator:
            continue
        if section not in _SECTIONS:
            close = _close_to(section, list(_SECTIONS), 0.75)
            if close:
                meant = f"{ENVIRONMENT_PREFIX}{close[0]}_{key}".upper()
                raise ConfigurationError(
                    f"{variable} in the environment: unknown section", hint=f"did you mean {meant}?"
                )
            continue
        if key not in _SECTIONS[section]:
            hint = _suggestion(key, list(_SECTIONS[section]))
            raise ConfigurationError(
                f"environment variable {variable}: unknown key {section}.{key}", hint=hint
            )
        values[section, key] = _from_environment(variable, environment[variable], _SECTIONS[section][key])
    return values


def _from_environment(variable: str, text: str, kind: Any) -> Any:
    raw: Any = text
    if kind == tuple[str, ...]:
        raw = [item.strip() for item in text.split(",") if item.strip()]
    try:
        return msgspec.to_builtins(msgspec.convert(raw, kind, strict=False))
    except msgspec.ValidationError as error:
        raise ConfigurationError(f"{variable} in the environment: {error}") from error


def _completed(written: Configuration, source: str) -> Configuration:
    """Fill what depends on other settings: node name, data directory, ports of addresses."""
    network, cluster = written.network, written.cluster
    default_port = network.internode_port
    name = written.node.name
    if not name:
        name = network.address if default_port == 7000 else f"{network.address}-{default_port}"
    directory = written.node.data_directory or f"./lockstep-data/{name}"
    try:
        founders = tuple(_with_port(address, default_port) for address in cluster.founders)
        seeds = tuple(_with_port(address, default_port) for address in cluster.seeds)
    except ConfigurationError as error:
        raise ConfigurationError(f"{source}: cluster: {error.message}", hint=error.hint) from error
    return msgspec.structs.replace(
        written,
        node=msgspec.structs.replace(written.node, name=name, data_directory=directory),
        cluster=msgspec.structs.replace(cluster, founders=founders, seeds=seeds),
    )


def _with_port(address: str, default_port: int) -> str:
    host, port = split_address(address, default_port)
    return f"{host}:{port}"


def _check(configuration: Configuration, source: str) -> None:
    """Rules between settings."""
    cluster, network, raft = configuration.cluster, configuration.network, configuration.raft
    own = configuration.internode_address
    if len(cluster.founders) > FOUNDERS_MAX:
        raise ConfigurationError(
            f"{source}: cluster.founders names {len(cluster.founders)} nodes, the most is {FOUNDERS_MAX}",
            hint="let the other nodes join: give them cluster.seeds instead",
        )
    if len(set(cluster.founders)) != len(cluster.founders):
        raise ConfigurationError(f"{source}: cluster.founders names a node twice")
    if cluster.join and not cluster.founders and not cluster.seeds:
        raise ConfigurationError(
            f"{source}: nothing says how this node finds its cluster",
            hint=f'set cluster.founders = ["{own}"] to found one, or cluster.seeds to join one',
        )
    if cluster.join and not configuration.is_founder and not cluster.seeds:
        raise ConfigurationError(
            f"{source}: {own} is not among cluster.founders and has no cluster.seeds",
            hint="set network.address to one of the founders, or set cluster.seeds to join them",
        )
    if len({network.internode_port, network.cql_port, network.admin_port}) < 3:
        raise ConfigurationError(f"{source}: network: two of the three ports are the same")
    if cluster.join_secret and cluster.join_secret_file:
        raise ConfigurationError(
            f"{source}: cluster.join_secret and cluster.join_secret_file are both set", hint="keep the file"
        )
    weak = secret_problem(cluster.join_secret)
    if weak is not None:
        raise ConfigurationError(f"{source}: cluster.join_secret: {weak[0]}", hint=weak[1])
    proves = bool(cluster.join_secret or cluster.join_secret_file)
    insecure = problem(configuration.auth, configuration.tls, nodes_prove=proves)
    if insecure is not None:
        raise ConfigurationError(f"{source}: {insecure[0]}", hint=insecure[1])
    if configuration.testing != TestingSection() and not configuration.testing.faults:
        raise ConfigurationError(
            f"{source}: [testing] has settings without testing.faults", hint="remove the section"
        )
    for name in configuration.testing.hidden_features:
        if name not in SUPPORTED:
            raise ConfigurationError(
                f"{source}: testing.hidden_features: there is no feature {name}",
                hint=f"there are: {', '.join(SUPPORTED)}",
            )
    if cluster.founders[:1] == (own,) and not configuration.placement.num_tokens:
        raise ConfigurationError(
            f"{source}: placement.num_tokens is 0, and the first founder of a cluster owns tokens",
            hint="name a node with tokens first, or let this one join: set cluster.seeds instead of founders",
        )
    if raft.heartbeat_ticks >= raft.election_ticks:
        raise ConfigurationError(
            f"{source}: raft.heartbeat_ticks is {raft.heartbeat_ticks}, not below "
            f"raft.election_ticks ({raft.election_ticks}): followers would elect while their leader lives"
        )
