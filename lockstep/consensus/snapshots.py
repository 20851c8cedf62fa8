"""How a snapshot travels: offered, asked for chunk by chunk, installed.

Owns: both ends of a transfer. Invariant: a transfer belongs to one descriptor; the receiver takes exactly the
bytes at the offset it wants next, so loss, doubling, reordering and a change of leader cost at most a chunk
sent twice; at most one chunk per member is read or on its way. A snapshot replaces the log only when every
byte is here and the log does not reach it.

    leader                                   receiver
    InstallSnapshot without data (offer) ->  Ready.snapshot_offered; ChunkStored(next) or SnapshotPresent
    Ready.chunks_wanted                  <-  InstallReply(offset wanted)
    SnapshotChunk; InstallSnapshot       ->  Ready.chunk_received; ChunkStored(next)
    Ready.chunks_wanted                  <-  InstallReply(next)            ... and so on
    _settle: on with appends             <-  AppendReply(index), when the installation is durable
"""

from __future__ import annotations

from lockstep.consensus.effects import ChunkReceived, ChunkWanted
from lockstep.consensus.events import ChunkStored, SnapshotChunk, SnapshotFailed, SnapshotPresent
from lockstep.consensus.messages import InstallReply, InstallSnapshot, Snapshot
from lockstep.consensus.progress import Progress
from lockstep.consensus.state import Incoming, RaftState

# -- the leader's side


def begin(state: RaftState, peer: int, progress: Progress) -> bool:
    """Offer the newest snapshot to a member that the log does not reach; False when the member is silent."""
    if not progress.heard:
        return False
    snapshot = state.snapshot
    assert snapshot is not None, "entries were forgotten without a snapshot"
    assert snapshot.index >= state.log.base_index, "what the log forgot is in no snapshot"
    assert snapshot.index > progress.match, "a snapshot of what the member has"
    progress.to_snapshot(snapshot)
    _offer(state, peer, snapshot)
    return True


def _offer(state: RaftState, peer: int, snapshot: Snapshot) -> None:
    state.outbox.append(InstallSnapshot(state.group, state.identity, peer, state.term, snapshot))


def on_install_reply(state: RaftState, reply: InstallReply) -> None:
    progress = state.progress.get(reply.sender)
    if progress is None:
        return
    progress.heard = True
    snapshot = progress.snapshot
    if snapshot is None or (snapshot.index, snapshot.term) != (reply.index, reply.snapshot_term):
        return
    if not 0 <= reply.offset <= snapshot.size_bytes:
        return
    progress.snapshot_ticks = 0
    if progress.is_chunk_pending and reply.offset <= progress.chunk_offset:
        return
    progress.chunk_offset = reply.offset
    progress.chunk_ticks = 0
    progress.is_chunk_pending = reply.offset < snapshot.size_bytes
    if progress.is_chunk_pending:
        state.chunks_wanted.append(
            ChunkWanted(reply.sender, snapshot, reply.offset, state.settings.chunk_bytes_max)
        )


def on_snapshot_chunk(state: RaftState, event: SnapshotChunk) -> None:
    progress = state.progress.get(event.member)
    snapshot = event.snapshot
    if progress is None or progress.snapshot != snapshot:
        return
    if not progress.is_chunk_pending or event.offset != progress.chunk_offset:
        return
    left = min(snapshot.size_bytes - event.offset, state.settings.chunk_bytes_max)
    assert 0 < len(event.data) <= left, f"a chunk of {len(event.data)} bytes where 1..{left} belong"
    progress.chunk_ticks = 0
    state.outbox.append(
        InstallSnapshot(
            state.group, state.identity, event.member, state.term, snapshot, event.offset, event.data
        )
    )


def on_snapshot_failed(state: RaftState, event: SnapshotFailed) -> None:
    progress = state.progress.get(event.member)
    if progress is not None and progress.snapshot == event.snapshot:
        progress.to_probe()


def tick(state: RaftState) -> None:
    """Ask again where an answer is overdue; give up on members that stay silent. The answer to their next
    heartbeat starts another transfer."""
    settings = state.settings
    for peer, progress in state.progress.items():
        snapshot = progress.snapshot
        if snapshot is None:
            continue
        progress.snapshot_ticks += 1
        progress.chunk_ticks += 1
        if progress.snapshot_ticks >= settings.snapshot_ticks:
            progress.to_probe()
        elif progress.chunk_ticks >= settings.chunk_ticks:
            progress.chunk_ticks = 0
            progress.is_chunk_pending = False
            _offer(state, peer, snapshot)


def settle(state: RaftState, progress: Progress) -> None:
    """After an acknowledgement: the transfer is over once the log, or the snapshot, reaches the member."""
    snapshot = progress.snapshot
    if snapshot is not None and progress.match >= min(state.log.base_index, snapshot.index):
        progress.to_replicate()


# -- the receiver's side


def on_install_snapshot(state: RaftState, message: InstallSnapshot) -> None:
    assert message.term == state.term, "a leader of another term"
    state.follow(message.sender)
    snapshot = message.snapshot
    if not _is_needed(state, snapshot):
        state.acknowledge(state.log.commit_index)
        return
    incoming = state.incoming
    if incoming is None or incoming.snapshot != snapshot:
        if incoming is None or not incoming.supersedes(snapshot, state.term):
            state.incoming = Incoming(snapshot, state.term)
            state.snapshot_offered = snapshot
        return
    incoming.leader_term = state.term
    if incoming.next_offset is None or incoming.is_storing:
        return  # the driver's answer will say what is wanted
    if message.data and is_wanted(incoming, message.offset, len(message.data)):
        incoming.is_storing = True
        state.chunk_received = ChunkReceived(snapshot, message.offset, message.data)
    else:
        _ask(state, incoming)


def is_wanted(incoming: Incoming, offset: int, length: int) -> bool:
    """Whether bytes at `offset` are the ones that must come next."""
    assert not incoming.is_storing, "one chunk at a time"
    return offset == incoming.next_offset and offset + length <= incoming.snapshot.size_bytes


def _is_needed(state: RaftState, snapshot: Snapshot) -> bool:
    """False when the log holds what the snapshot stands for; that much is then known to be committed."""
    log = state.log
    if snapshot.index > log.commit_index and not log.matches(snapshot.index, snapshot.term):
        return True
    log.commit_to(snapshot.index)
    return False


def drop_overtaken(state: RaftState) -> None:
    """Forget what is arriving once the log has reached it; the driver's late answers are then ignored."""
    incoming = state.incoming
    if incoming is not None and incoming.snapshot.index <= state.log.commit_index:
        state.incoming = None


def _ask(state: RaftState, incoming: Incoming) -> None:
    """Tell the leader what comes next; without one, the next leader's offer will be answered."""
    if state.leader is not None and incoming.next_offset is not None:
        snapshot = incoming.snapshot
        state.outbox.append(
            InstallReply(
                state.group, state.identity, state.leader, state.term,
                snapshot.index, snapshot.term, incoming.next_offset,
            )
        )  # fmt: skip


def on_chunk_stored(state: RaftState, event: ChunkStored) -> None:
    incoming = state.incoming
    if incoming is None or incoming.snapshot != event.snapshot:
        return
    assert 0 <= event.next_offset <= event.snapshot.size_bytes, "an offset outside the snapshot"
    incoming.next_offset = event.next_offset
    incoming.is_storing = False
    if event.next_offset == event.snapshot.size_bytes:
        _install(state, event.snapshot)
    else:
        _ask(state, incoming)


def on_snapshot_present(state: RaftState, event: SnapshotPresent) -> None:
    if state.incoming is not None and state.incoming.snapshot == event.snapshot:
        _install(state, event.snapshot)


def _install(state: RaftState, snapshot: Snapshot) -> None:
    """All bytes are here: replace the log, unless it has reached the snapshot meanwhile."""
    if _is_needed(state, snapshot):
        state.restore(snapshot)
    assert state.log.commit_index >= snapshot.index, "what a snapshot holds is committed"
    if state.leader is not None:
        state.acknowledge(state.log.commit_index)
