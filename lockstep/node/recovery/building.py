"""Beginning the groups of a log that members of a ring agreed on, at a node that was one of them.

It is done while the node serves: the entry that builds the log is the last one of the ring, so until a
majority of the new voters has come here there is nothing that could be decided otherwise.

Invariant: each node begins its part once, before it has a voice there; what it begins with follows from that
entry and the value that it makes, so all voters begin alike. Who hears of the log when the entry is kept no
more begins as a newcomer does, whom the leader tells the rest.
"""

from __future__ import annotations

from collections.abc import Callable

from lockstep.consensus.effects import HardState
from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.groups.ringed import RINGED
from lockstep.metadata.groups.upgrade_entries import BuildLog
from lockstep.metadata.log.entries import LogEntry
from lockstep.node.log.journal import METADATA_GROUP, RaftJournal
from lockstep.node.log.metadata_past import Past
from lockstep.node.log.metadata_state import MetadataState
from lockstep.node.membership.identity import IdentityFile
from lockstep.node.recovery.applying import begin_groups
from lockstep.recovery.living import Anew
from lockstep.runtime.ports import Runtime
from lockstep.values.codec import decoder
from lockstep.values.errors import CorruptFile, LogTruncated

_BODY = decoder(BuildLog)


def built_behind(value: ClusterMetadata, last: LogEntry) -> Anew:
    """How both groups begin behind the entry that built the log, and made `value`."""
    assert value.epoch == last.epoch == value.parts[RINGED].built_epoch, "the entry built the log"
    voters = _BODY.decode(last.body).voters
    return Anew(
        attempt=last.hash.hex()[:32],
        cluster_id=value.identity.cluster_id,
        cluster_name=value.identity.cluster_name,
        voters=voters,
        management=voters,
        raft_index=last.epoch + 1,
        raft_term=last.term + 1,
        expelled=(),
        last=last,
    )


async def begin_log(
    runtime: Runtime, state: MetadataState, identity: IdentityFile, log: Callable[..., None]
) -> None:
    """Begin this node's part of the log that the ring has become, unless that was done. Errors: CorruptFile,
    DiskRefused."""
    built = state.current.parts[RINGED].built_epoch
    own = state.current.directory.by_host_id.get(identity.value.host_id)
    if identity.value.log_epoch >= built or own is None or own.accepted_epoch > built:
        return
    # The last of the ring's entries may be in memory alone, and what follows is about them.
    await state.store.flush()
    runtime.probes.reach("upgrade.flushed")
    found = await _at(state, built)
    if found is not None:
        value, last = found
        await begin_groups(runtime, built_behind(value, last), value, own.id)
    elif own.id in state.current.voters:
        await RaftJournal(runtime.disk, METADATA_GROUP).replace(HardState(), None, ())
    runtime.probes.reach("upgrade.grouped")
    await identity.begin_log(built)
    runtime.probes.reach("upgrade.begun")
    log("upgrade.log_begun", epoch=built, votes=own.id in state.current.voters)


async def _at(state: MetadataState, built: int) -> tuple[ClusterMetadata, LogEntry] | None:
    """The value of that epoch and the entry that made it; None when they are kept no more."""
    entries = state.retained(built, built)
    if not entries:
        return None
    try:
        return await Past(state).value_at(built), entries[0]
    except (LogTruncated, CorruptFile):
        return None
