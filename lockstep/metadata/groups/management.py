"""The state machine of the management group, cluster identity, lineage, admitted nodes, metadata voters, and
the commands of its log.

Invariant: `apply` is a function of the state, the index and the command alone; a refused command is kept as
an outcome like an accepted one; an id has one outcome for ever, so a retried command changes nothing. Lineage
only grows; a host that was expelled stays out. A command carries an id that its submitter keeps over all
retries, and the group's index that the submitter knew at first sending: so a late copy is either known by its
id or refused for its age. Tags are never reused and fields are only appended.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, Final

import msgspec

from lockstep.values import codec
from lockstep.values.errors import CannotApply
from lockstep.values.limits import MANAGEMENT_OUTCOMES_MAX, NODES_MAX

COMMAND_ID_BYTES = 16


class Host(msgspec.Struct, frozen=True, array_like=True):
    """A node by its host id, and where it is. `node_id` 0: the log of metadata gave none yet."""

    host_id: str
    address: str
    port: int
    node_id: int = 0


class Repair(msgspec.Struct, frozen=True, array_like=True):
    """What began a cluster id. `kind` "founding" is the first; `detail` is the repair's own record."""

    kind: str = "founding"
    actor: str = ""
    detail: bytes = b""


class Former(msgspec.Struct, frozen=True, array_like=True):
    """A cluster id that came before, for a group that is made anew."""

    cluster_id: str
    repair: Repair = Repair()


class Found(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """The first command: identity and first nodes. `former` is the lineage that `cluster_id` continues."""

    cluster_id: str
    cluster_name: str
    hosts: tuple[Host, ...]
    repair: Repair = Repair()
    former: tuple[Former, ...] = ()


class Admit(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """Let a node in, or note its node id or new address. `epoch` is the metadata epoch it was asked at."""

    host: Host
    epoch: int


class Expel(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """A host that is gone for good: it is never admitted again."""

    host_id: str
    reason: str = ""


class RecordVoters(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """Voters of the metadata group, ascending, at which configuration index and metadata epoch."""

    voters: tuple[int, ...]
    configuration_index: int
    epoch: int
    recovery_generation: int = 0


Action = Found | Admit | Expel | RecordVoters
#: As people and settings name them.
ACTION_NAMES: Final[Mapping[type[Any], str]] = {
    Found: "found",
    Admit: "admit",
    Expel: "expel",
    RecordVoters: "record_voters",
}


class Command(msgspec.Struct, frozen=True, array_like=True):
    id: bytes
    base_index: int
    actor: str
    action: Action


_MANAGEMENT_DECODER: codec.Decoder[Command] = codec.decoder(Command)


def encode_command(command: Command) -> bytes:
    assert len(command.id) == COMMAND_ID_BYTES, "a command id is 16 bytes"
    return codec.encode(command)


def decode_command(data: bytes) -> Command:
    """One of codec.UNREADABLE when the bytes are no command."""
    return _MANAGEMENT_DECODER.decode(data)


DIGEST_BYTES = 32
GENESIS = bytes(DIGEST_BYTES)
#: First field of a snapshot: a later form gets another number.
SNAPSHOT_FORMAT = 1


class Link(msgspec.Struct, frozen=True, array_like=True):
    """One cluster id of the lineage; `hash` covers everything else in it and, through it, all before it."""

    cluster_id: str
    repair: Repair
    previous_hash: bytes
    hash: bytes


class AdmittedNode(msgspec.Struct, frozen=True, array_like=True):
    """`epoch` and `index` are those of its first admission. `node_id` 0: not known yet."""

    host_id: str
    address: str
    port: int
    node_id: int
    epoch: int
    index: int


class VotersRecord(msgspec.Struct, frozen=True, array_like=True):
    """Voters of the metadata group as last recorded; `index` is the command's."""

    voters: tuple[int, ...] = ()
    configuration_index: int = 0
    epoch: int = 0
    recovery_generation: int = 0
    index: int = 0

    @property
    def version(self) -> tuple[int, int, int]:
        """Later records are larger: a recovery starts a new count of configurations."""
        return (self.recovery_generation, self.epoch, self.configuration_index)


class Refusal(msgspec.Struct, frozen=True, array_like=True):
    """Why a command changed nothing; `code` is for programs."""

    code: str
    message: str


class Outcome(msgspec.Struct, frozen=True, array_like=True):
    """How the command of an id ended, at its first index."""

    id: bytes
    index: int
    refusal: Refusal | None = None


class ManagementState(msgspec.Struct, frozen=True, array_like=True, dict=True):
    """`index` and `hash` are those of the last command; nodes are sorted by host id, outcomes by index.

    `forgotten_index`: ids whose first index is not above it are no longer kept.
    """

    index: int = 0
    hash: bytes = GENESIS
    cluster_name: str = ""
    lineage: tuple[Link, ...] = ()
    nodes: tuple[AdmittedNode, ...] = ()
    expelled: tuple[str, ...] = ()
    voters: VotersRecord = VotersRecord()
    outcomes: tuple[Outcome, ...] = ()
    forgotten_index: int = 0

    @property
    def cluster_id(self) -> str:
        """Empty until founded."""
        return self.lineage[-1].cluster_id if self.lineage else ""

    @cached_property
    def by_host_id(self) -> dict[str, AdmittedNode]:
        return {node.host_id: node for node in self.nodes}

    @cached_property
    def _outcome_by_id(self) -> dict[bytes, Outcome]:
        return {outcome.id: outcome for outcome in self.outcomes}

    def outcome_of(self, command_id: bytes) -> Outcome | None:
        """None when the id was never applied, or too long ago."""
        return self._outcome_by_id.get(command_id)

    def is_known(self, command_id: bytes) -> bool:
        """Whether a command of this id would be a repetition."""
        return command_id in self._outcome_by_id

    @cached_property
    def digest(self) -> bytes:
        """32 bytes over everything: equal states, and only they, have equal digests."""
        return hashlib.blake2b(codec.encode(self), digest_size=DIGEST_BYTES).digest()

    def validate(self) -> None:
        """Assert what must hold of every state, whichever commands made it."""
        host_ids = [node.host_id for node in self.nodes]
        assert host_ids == sorted(set(host_ids)), "admitted nodes are sorted and unique"
        given = [node.node_id for node in self.nodes if node.node_id]
        assert len(given) == len(set(given)), "a node id belongs to one host"
        assert list(self.expelled) == sorted(set(self.expelled)), "expelled hosts are sorted and unique"
        assert not set(host_ids) & set(self.expelled), "an expelled host is not admitted"
        assert lineage_problem(self.lineage) == "", lineage_problem(self.lineage)
        assert bool(self.lineage) or not (self.nodes or self.voters.voters), "identity comes first"
        indexes = [outcome.index for outcome in self.outcomes]
        assert indexes == sorted(set(indexes)), "one outcome for an index, in order"
        assert len(self._outcome_by_id) == len(self.outcomes), "one outcome for an id"
        assert len(indexes) <= MANAGEMENT_OUTCOMES_MAX, "outcomes are bounded"
        assert all(self.forgotten_index < index <= self.index for index in indexes), "outcomes are recent"
        voters = self.voters.voters
        assert voters == tuple(sorted(set(voters))), "voters are sorted and unique"


EMPTY_STATE = ManagementState()


def link_hash(cluster_id: str, repair: Repair, previous_hash: bytes) -> bytes:
    return hashlib.blake2b(
        codec.encode((cluster_id, repair, previous_hash)), digest_size=DIGEST_BYTES
    ).digest()


def lineage_problem(lineage: tuple[Link, ...]) -> str:
    """Empty when each link follows the one before it; else what is wrong, for people."""
    previous = GENESIS
    for link in lineage:
        if link.previous_hash != previous or link.hash != link_hash(link.cluster_id, link.repair, previous):
            return f"the lineage is broken at cluster {link.cluster_id}"
        previous = link.hash
    ids = [link.cluster_id for link in lineage]
    return "" if len(ids) == len(set(ids)) else "the lineage names one cluster id twice"


def apply(state: ManagementState, index: int, command: Command) -> ManagementState:
    """The state after the committed command at `index`, which lies above the state's.

    A command whose id is known, or that is too old to tell, changes nothing but index and hash.
    """
    assert index > state.index, f"commands are applied in order: {index} after {state.index}"
    chained = codec.encode((state.hash, index)) + encode_command(command)
    moved = msgspec.structs.replace(
        state, index=index, hash=hashlib.blake2b(chained, digest_size=DIGEST_BYTES).digest()
    )
    if state.is_known(command.id):
        return moved
    if command.base_index < state.forgotten_index:
        expired = f"first sent at index {command.base_index}; ids up to {state.forgotten_index} are not kept"
        return _with_outcome(moved, Outcome(command.id, index, Refusal("EXPIRED", expired)))
    judged = _ACTIONS[type(command.action)](moved, command.action)
    if isinstance(judged, Refusal):
        return _with_outcome(moved, Outcome(command.id, index, judged))
    assert judged.lineage[: len(state.lineage)] == state.lineage, "lineage only grows"
    assert {*state.expelled} <= {*judged.expelled}, "a host that was expelled stays out"
    return _with_outcome(judged, Outcome(command.id, index))


def _with_outcome(state: ManagementState, outcome: Outcome) -> ManagementState:
    outcomes, forgotten = (*state.outcomes, outcome), state.forgotten_index
    if len(outcomes) > MANAGEMENT_OUTCOMES_MAX:
        forgotten, outcomes = outcomes[0].index, outcomes[1:]
        assert forgotten > state.forgotten_index, "what is forgotten stays so"
    return msgspec.structs.replace(state, outcomes=outcomes, forgotten_index=forgotten)


def _found(state: ManagementState, action: Found) -> ManagementState | Refusal:
    if state.lineage:
        return Refusal("ALREADY_FOUNDED", f"this group belongs to cluster {state.cluster_id}")
    if not action.cluster_id or not action.cluster_name or not action.hosts:
        return Refusal("INVALID", "a cluster needs an id, a name and at least one node")
    lineage: tuple[Link, ...] = ()
    ids = [(former.cluster_id, former.repair) for former in action.former]
    for cluster_id, repair in (*ids, (action.cluster_id, action.repair)):
        previous = lineage[-1].hash if lineage else GENESIS
        link = Link(cluster_id, repair, previous, link_hash(cluster_id, repair, previous))
        lineage = (*lineage, link)
    problem = lineage_problem(lineage)
    if problem:
        return Refusal("INVALID", problem)
    founded = msgspec.structs.replace(state, cluster_name=action.cluster_name, lineage=lineage)
    for host in action.hosts:
        admitted = _admit(founded, Admit(host, 0))
        if isinstance(admitted, Refusal):
            return admitted
        founded = admitted
    return founded


def _admit(state: ManagementState, action: Admit) -> ManagementState | Refusal:
    host = action.host
    if not state.lineage:
        return Refusal("NOT_FOUNDED", "no cluster was founded in this group")
    if not host.host_id or not host.address or host.port <= 0:
        return Refusal("INVALID", "a node needs a host id and an address")
    if host.host_id in state.expelled:
        return Refusal("EXPELLED", f"host {host.host_id} has left this cluster; it may join as a new one")
    known = state.by_host_id.get(host.host_id)
    if known is None and len(state.nodes) >= NODES_MAX:
        return Refusal("FULL", f"a cluster has at most {NODES_MAX} nodes")
    if known is not None and known.node_id and host.node_id not in (0, known.node_id):
        return Refusal("CONFLICT", f"host {host.host_id} is node {known.node_id}")
    if host.node_id and any(
        node.node_id == host.node_id and node.host_id != host.host_id for node in state.nodes
    ):
        return Refusal("CONFLICT", f"node id {host.node_id} belongs to another host")
    node = AdmittedNode(
        host_id=host.host_id,
        address=host.address,
        port=host.port,
        node_id=host.node_id or (known.node_id if known is not None else 0),
        epoch=known.epoch if known is not None else action.epoch,
        index=known.index if known is not None else state.index,
    )
    if node == known:
        return state
    at = bisect_left(state.nodes, host.host_id, key=lambda other: other.host_id)
    after = at if known is None else at + 1
    return msgspec.structs.replace(state, nodes=(*state.nodes[:at], node, *state.nodes[after:]))


def _expel(state: ManagementState, action: Expel) -> ManagementState | Refusal:
    if action.host_id in state.expelled:
        return state
    if action.host_id not in state.by_host_id:
        return Refusal("NOT_ADMITTED", f"host {action.host_id} was never admitted")
    return msgspec.structs.replace(
        state,
        nodes=tuple(node for node in state.nodes if node.host_id != action.host_id),
        expelled=tuple(sorted((*state.expelled, action.host_id))),
    )


def _record_voters(state: ManagementState, action: RecordVoters) -> ManagementState | Refusal:
    if not state.lineage:
        return Refusal("NOT_FOUNDED", "no cluster was founded in this group")
    if not action.voters or action.voters != tuple(sorted(set(action.voters))):
        return Refusal("INVALID", "voters are distinct and ascending, and there is one at least")
    record = VotersRecord(
        action.voters, action.configuration_index, action.epoch, action.recovery_generation, state.index
    )
    known = state.voters
    if record.version < known.version:
        return Refusal("STALE", f"voters are recorded as of epoch {known.epoch} already")
    if record.version == known.version:
        if record.voters == known.voters:
            return state
        return Refusal("CONFLICT", f"other voters are recorded as of epoch {known.epoch}")
    return msgspec.structs.replace(state, voters=record)


_ACTIONS: dict[type[Any], Callable[[ManagementState, Any], ManagementState | Refusal]] = {
    Found: _found,
    Admit: _admit,
    Expel: _expel,
    RecordVoters: _record_voters,
}


class _Image(msgspec.Struct, frozen=True, array_like=True):
    """A snapshot: the state beside its digest, so that damage and divergence show when it is read."""

    format: int
    digest: bytes
    state: ManagementState


_DECODER = codec.decoder(_Image)


def encode_state(state: ManagementState) -> bytes:
    """Canonical bytes: equal states give equal bytes on every node. They may be cut into chunks anywhere."""
    return codec.encode(_Image(SNAPSHOT_FORMAT, state.digest, state))


def decode_state(data: bytes) -> ManagementState:
    """Inverse of `encode_state`; CannotApply when the bytes are not a whole snapshot of this version."""
    try:
        image = _DECODER.decode(data)
    except codec.UNREADABLE as error:
        raise CannotApply(f"a snapshot of the management group cannot be read: {error}") from error
    if image.format != SNAPSHOT_FORMAT or image.state.digest != image.digest:
        raise CannotApply("a snapshot of the management group is of another version or damaged")
    return image.state
