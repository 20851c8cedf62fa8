"""The plan of a repair that takes commands out of the log of the management group.

Each member says what it holds from an index on, and the state before it where it can make that. The metadata
group, which works, then ends the cluster id by one entry, and every member begins anew with that state: so
none of them starts again before all that is to go is out of the log of each, whatever a snapshot holds.

Invariant: what the metadata say of nodes holds, whatever goes. So only what no metadata says can be lost:
newcomers that were let in and are not registered yet, who ask again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from lockstep.consensus.messages import Entry, EntryKind
from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.groups.management import (
    ACTION_NAMES,
    EMPTY_STATE,
    Admit,
    Command,
    Expel,
    Found,
    Host,
    ManagementState,
    RecordVoters,
    apply,
    decode_command,
)
from lockstep.metadata.groups.placing import named_managers
from lockstep.metadata.lineage import MANAGEMENT_TRUNCATION
from lockstep.recovery.plan import Drawn, Kept, ResetPlan, Wish, plan_by_log
from lockstep.recovery.survey import Survey
from lockstep.values import codec
from lockstep.values.codec import UNREADABLE
from lockstep.values.errors import CannotApply, PreconditionError
from lockstep.values.node_limits import MANAGEMENT_KEPT_MAX

_STATES_HINT: Final = "`lockstep recovery cluster states cmg --local` shows what each member has"


class HeldCommand(msgspec.Struct, frozen=True, array_like=True):
    """One entry of the group's log. `summary`: what it does, for people."""

    index: int
    term: int
    kind: str
    actor: str
    summary: str
    digest: bytes


class ManagementHeld(msgspec.Struct, frozen=True, array_like=True):
    """What a member holds, as seen from an index. `broken`: why it applies no more; empty while it does.
    `applied`, `committed`, `last`: of its log; `snapshot`: up to where its first state reaches.
    `voters`: by its log. `commands` begin at the index, and `more` follow them. `has_before`: whether it can
    make the state before the index; `admitted` and `expelled` are the hosts of that state, `digest` is over
    it."""

    node: int
    broken: str
    applied: int
    committed: int
    last: int
    snapshot: int
    voters: tuple[int, ...]
    commands: tuple[HeldCommand, ...] = ()
    more: int = 0
    has_before: bool = False
    admitted: tuple[Host, ...] = ()
    expelled: tuple[str, ...] = ()
    digest: bytes = b""


class ManagementCut(msgspec.Struct, frozen=True):
    """Take every command from `index` on out of the log; `committed`: also those that may have been
    answered."""

    index: int
    actor: str
    committed: bool = False


class PlannedCut(msgspec.Struct, frozen=True):
    """`source`: whose state goes on; 0: no member can make it, so what the metadata say is all there is."""

    plan: ResetPlan
    source: int
    last: int
    committed: int

    @property
    def digest(self) -> str:
        told = (self.plan.digest, self.source, self.last, self.committed, self.plan.lost)
        return hashlib.blake2b(codec.encode(told), digest_size=16).hexdigest()


def described(entry: Entry) -> HeldCommand:
    """An entry of the log as plans show it, also one that cannot be read."""
    kind, actor, summary = entry.kind.name.lower(), "", ""
    if entry.kind is EntryKind.NORMAL:
        try:
            command = decode_command(entry.data)
        except UNREADABLE as error:
            kind, summary = "unreadable", f"{len(entry.data)} bytes: {error}"
        else:
            actor = command.actor
            kind, summary = ACTION_NAMES[type(command.action)], _said(command)
    digest = hashlib.blake2b(codec.encode(entry), digest_size=16).digest()
    return HeldCommand(entry.index, entry.term, kind, actor, summary, digest)


def _said(command: Command) -> str:
    match command.action:
        case Found(cluster_id=cluster_id, hosts=hosts):
            return f"cluster {cluster_id} with {len(hosts)} nodes"
        case Admit(host=host):
            known = f"node {host.node_id}" if host.node_id else "a newcomer"
            return f"{known}, host {host.host_id} at {host.address}:{host.port}"
        case Expel(host_id=host_id, reason=reason):
            return f"host {host_id}: {reason}"
        case RecordVoters(voters=voters, epoch=epoch):
            return f"{', '.join(map(str, voters))} as of epoch {epoch}"


def state_before(
    base: ManagementState | None, entries: Iterable[Entry], index: int
) -> ManagementState | None:
    """The state that the commands below the index make of `base`, which a snapshot has; None where they are
    not all there, or one of them cannot be applied."""
    state = base if base is not None else EMPTY_STATE
    if state.index >= index:
        return None
    for entry in entries:
        if not state.index < entry.index < index or entry.kind is not EntryKind.NORMAL:
            continue
        try:
            state = apply(state, entry.index, decode_command(entry.data))
        except (CannotApply, *UNREADABLE):
            return None
    return state if state.lineage else None


def held_of(
    held: ManagementHeld, before: ManagementState | None, directory: Mapping[str, object]
) -> ManagementHeld:
    """With what of the state before the index no metadata says, whose hosts are `directory`."""
    if before is None:
        return held
    admitted = tuple(
        Host(node.host_id, node.address, node.port, node.node_id)
        for node in before.nodes
        if node.host_id not in directory
    )
    expelled = tuple(host for host in before.expelled if host not in directory)
    return msgspec.structs.replace(
        held, has_before=True, admitted=admitted, expelled=expelled, digest=before.digest
    )


def refuse(held: Sequence[ManagementHeld], cut: ManagementCut) -> None:
    """PreconditionError unless the group can do its work no more and the commands are there to be taken
    out."""
    if not held:
        raise PreconditionError("no member of the management group answers", hint=_STATES_HINT)
    last, committed = max(one.last for one in held), max(one.committed for one in held)
    if not 1 < cut.index <= last:
        raise PreconditionError(
            f"there is no command {cut.index} to take out: the log ends at index {last}, and the first one "
            "founds the cluster",
            hint=_STATES_HINT,
        )
    voters = max(held, key=lambda one: (one.committed, one.last)).voters
    working = [one.node for one in held if not one.broken and one.node in voters]
    if 2 * len(working) > len(voters):
        raise PreconditionError(
            f"{len(working)} of {len(voters)} members can apply every command: the group does its work",
            hint="nothing is taken out of the log of a group that lives; " + _STATES_HINT,
        )
    if cut.index <= committed and not cut.committed:
        raise PreconditionError(
            f"commands up to index {committed} are committed: whoever asked for them may have been told so",
            hint="--below-commit-index takes them out all the same",
        )


def plan_cut(
    cluster: ClusterMetadata,
    answers: Sequence[Survey],
    held: Sequence[ManagementHeld],
    cut: ManagementCut,
    drawn: Drawn,
) -> PlannedCut:
    """PreconditionError when there is nothing to take out, or no way to."""
    refuse(held, cut)
    if not any(one.leader for one in answers):
        raise PreconditionError(
            "nobody leads the metadata group, which is to decide it",
            hint="`lockstep recovery cluster reset` makes both groups anew from the metadata alone",
        )
    able = [one for one in held if one.has_before]
    if len({one.digest for one in able}) > 1:
        raise PreconditionError(
            f"members have different states before index {cut.index}", hint="truncate from an earlier one on"
        )
    source = min(able, key=lambda one: one.node) if able else None
    last, committed = max(one.last for one in held), max(one.committed for one in held)
    lost = f"commands {cut.index} to {last} of the management group"
    if source is None:
        lost += ", and who was let in before them and is not in the metadata: snapshots hold the commands"
    here = {one.node for one in answers}
    members = tuple(member for member in named_managers(cluster) if member in here)
    kept = Kept(MANAGEMENT_TRUNCATION, lost, *(_beside(source, cluster) if source is not None else ((), ())))
    plan = plan_by_log(cluster, answers, Wish(members, actor=cut.actor), drawn, kept)
    return PlannedCut(plan, source.node if source is not None else 0, last, committed)


def _beside(held: ManagementHeld, cluster: ClusterMetadata) -> tuple[tuple[Host, ...], tuple[str, ...]]:
    """Who is let in and who is shut out, as far as no metadata says it."""
    known = cluster.directory.by_host_id
    admitted = tuple(host for host in held.admitted if host.host_id not in known)
    expelled = tuple(host for host in held.expelled if host not in known)
    if len(admitted) + len(expelled) > MANAGEMENT_KEPT_MAX:
        raise PreconditionError(
            f"{len(admitted) + len(expelled)} hosts are let in or shut out and in no metadata; a plan takes "
            f"{MANAGEMENT_KEPT_MAX}"
        )
    assert not {host.host_id for host in admitted} & {*expelled}, "who was shut out is not let in"
    return admitted, expelled
