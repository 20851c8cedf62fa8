"""Runs the transcripts: text files of commands and the trace each must leave.

A block is one command line, `----`, the expected trace, an empty line. LOCKSTEP_REWRITE_TRANSCRIPTS=1 writes
what happened into the files instead of comparing; read the diff before committing it.

    group COUNT [outsiders=N] [setting=value ...]   members 1..COUNT found it, N more join later
    tick ID [TIMES] | campaign ID | propose ID WORD... | read ID CONTEXT | transfer ID TARGET
    configure ID voters=1,2 [learners=3] | unreachable ID PEER | forget ID
    compact ID INDEX KEEP [SIZE]    ID has a snapshot of SIZE bytes
    chunk ID PEER | fail ID PEER    ID's driver reads (cannot read) the bytes wanted for PEER
    stored ID [OFFSET] | present ID ID's driver answers the offer or stores the chunk (and wants OFFSET next),
                    or says that its state machine is already there
    persist ID      its oldest outstanding write becomes durable
    deliver A>B [N|all]  the oldest messages from A to B arrive (drop: are lost; double: arrive and stay)
    elect ID        campaigns and settles; leaves only who leads
    quietly COMMAND leaves no trace
    settle [ID...]  persist and deliver (among these members only) until nothing is left
    restart ID      loses what was not durable
    show            every member's state
"""

from __future__ import annotations

import os
from collections import deque
from pathlib import Path
from typing import Any

import msgspec
import pytest

from lockstep.consensus import events
from lockstep.consensus.configuration import Configuration, RaftSettings, decode_configuration
from lockstep.consensus.effects import ChunkWanted, Ready, Stored
from lockstep.consensus.messages import Entry, EntryKind, Message, Snapshot, decode_message, encode_message
from lockstep.consensus.raft import Raft

from .raft_history import Disk, Write

DIRECTORY = Path(__file__).parent / "transcripts"
ENVELOPE = ("group", "sender", "receiver", "term")


def shown(value: Any) -> str:
    if isinstance(value, Entry):
        data = value.data.decode() if value.kind is EntryKind.NORMAL else value.kind.name.lower()
        if value.kind is EntryKind.CONFIGURATION:
            data = shown(decode_configuration(value.data))
        return f"{value.index}/{value.term}:{data}"
    if isinstance(value, Configuration):
        parts = [f"{name}={shown(ids)}" for name, ids in msgspec.structs.asdict(value).items() if ids]
        return "{" + " ".join(parts) + "}"
    if isinstance(value, Snapshot):
        return f"{value.index}/{value.term}{shown(value.configuration)}:{value.size_bytes}B"
    if isinstance(value, bytes):
        return f"{len(value)}B"
    if isinstance(value, tuple):
        return "(" + " ".join(shown(item) for item in value) + ")"
    return str(value)


def message_text(message: Message) -> str:
    facts = msgspec.structs.asdict(message)
    hidden = ENVELOPE if facts.get("quiet") else (*ENVELOPE, "quiet")
    body = " ".join(f"{name}={shown(value)}" for name, value in facts.items() if name not in hidden)
    kind = type(message).__name__
    return f"{kind} {message.sender}>{message.receiver} term={message.term} {body}".rstrip()


class Stage:
    """The members, their disks and the messages on the way."""

    def __init__(self) -> None:
        self.rafts: dict[int, Raft] = {}
        self.disks: dict[int, Disk] = {}
        self.writes: dict[int, deque[Write]] = {}
        self.network: list[Message] = []
        self.wanted: dict[int, list[ChunkWanted]] = {}
        self.arriving: dict[int, tuple[Snapshot, int]] = {}
        self.settings = RaftSettings()
        self.founders: tuple[int, ...] = ()
        self.trace: list[str] = []

    def run(self, command: str) -> str:
        self.trace = []
        name, *words = command.split()
        getattr(self, f"do_{name}")(*words)
        for raft in self.rafts.values():
            raft.validate()
        return "\n".join(self.trace) or "nothing"

    def start(self, identity: int) -> None:
        disk = self.disks[identity]
        applied = disk.snapshot.index if disk.snapshot else 0
        stored = Stored(disk.hard_state, disk.snapshot, tuple(disk.entries), applied)
        voters = self.founders if identity in self.founders else ()
        self.rafts[identity] = Raft(1, identity, voters, self.settings, lambda bound: 0, stored)
        self.writes[identity] = deque()
        self.wanted[identity] = []
        self.arriving.pop(identity, None)

    def step(self, identity: int, event: events.Event) -> None:
        ready = self.rafts[identity].step(event)
        self.say(identity, ready)
        self.network.extend(ready.messages)
        self.wanted[identity].extend(ready.chunks_wanted)
        if ready.snapshot_offered is not None:
            self.arriving[identity] = (ready.snapshot_offered, 0)
        if ready.chunk_received is not None:
            chunk = ready.chunk_received
            self.arriving[identity] = (chunk.snapshot, chunk.offset + len(chunk.data))
        if ready.persisted is not None or ready.messages_after_persist:
            self.writes[identity].append(
                Write(
                    ready.hard_state,
                    ready.snapshot,
                    ready.entries,
                    ready.persisted,
                    ready.messages_after_persist,
                )
            )

    def say(self, identity: int, ready: Ready) -> None:
        lines: list[str] = []
        if ready.soft_state:
            soft = ready.soft_state
            lines.append(f"is {soft.role.value} term={soft.term} leader={soft.leader}")
        if ready.hard_state:
            lines.append(f"persist term={ready.hard_state.term} vote={ready.hard_state.vote}")
        if ready.snapshot:
            lines.append(f"persist snapshot {shown(ready.snapshot)}")
        if ready.entries:
            lines.append(f"persist {shown(ready.entries)}")
        lines.extend(f"send {message_text(message)}" for message in ready.messages)
        lines.extend(f"then {message_text(message)}" for message in ready.messages_after_persist)
        for wanted in ready.chunks_wanted:
            lines.append(f"read {shown(wanted.snapshot)} from {wanted.offset} for {wanted.member}")
        if ready.snapshot_offered:
            lines.append(f"offered {shown(ready.snapshot_offered)}")
        if ready.chunk_received:
            lines.append(f"store {len(ready.chunk_received.data)} bytes at {ready.chunk_received.offset}")
        if ready.committed:
            lines.append(f"apply {shown(ready.committed)}")
        lines.extend(f"read {read.context} at {read.index}" for read in ready.read_states)
        lines.extend(f"read {context} refused" for context in ready.reads_refused)
        if ready.accepted:
            accepted = ready.accepted
            lines.append(f"accepted {accepted.first_index}..{accepted.last_index} in term {accepted.term}")
        if ready.refused:
            lines.append(f"refused {ready.refused.reason.value} leader={ready.refused.leader}")
        self.trace.extend(f"{identity}: {line}" for line in lines)

    # -- commands

    def do_group(self, count: str, *options: str) -> None:
        values = dict(option.split("=") for option in options)
        outsiders = int(values.pop("outsiders", "0"))
        self.settings = msgspec.convert(
            {name: value == "on" if value in ("on", "off") else int(value) for name, value in values.items()},
            RaftSettings,
        )
        self.founders = tuple(range(1, int(count) + 1))
        for identity in range(1, int(count) + outsiders + 1):
            self.disks[identity] = Disk()
            self.start(identity)

    def do_tick(self, identity: str, times: str = "1") -> None:
        for _ in range(int(times)):
            self.step(int(identity), events.Tick())

    def do_campaign(self, identity: str) -> None:
        self.step(int(identity), events.Campaign())

    def do_propose(self, identity: str, *words: str) -> None:
        self.step(int(identity), events.Propose(tuple(word.encode() for word in words)))

    def do_read(self, identity: str, context: str) -> None:
        self.step(int(identity), events.ReadIndex(int(context)))

    def do_transfer(self, identity: str, target: str) -> None:
        self.step(int(identity), events.TransferLeadership(int(target)))

    def do_unreachable(self, identity: str, peer: str) -> None:
        self.step(int(identity), events.Unreachable(int(peer)))

    def do_forget(self, identity: str) -> None:
        self.step(int(identity), events.ForgetLeader())

    def take_wanted(self, identity: str, peer: str) -> ChunkWanted:
        wanted = self.wanted[int(identity)]
        found = next(chunk for chunk in wanted if chunk.member == int(peer))
        wanted.remove(found)
        return found

    def do_chunk(self, identity: str, peer: str) -> None:
        chunk = self.take_wanted(identity, peer)
        size = min(chunk.bytes_max, chunk.snapshot.size_bytes - chunk.offset)
        self.step(
            int(identity), events.SnapshotChunk(chunk.member, chunk.snapshot, chunk.offset, b"s" * size)
        )

    def do_fail(self, identity: str, peer: str) -> None:
        chunk = self.take_wanted(identity, peer)
        self.step(int(identity), events.SnapshotFailed(chunk.member, chunk.snapshot))

    def do_stored(self, identity: str, offset: str = "") -> None:
        snapshot, next_offset = self.arriving.pop(int(identity))
        self.step(int(identity), events.ChunkStored(snapshot, int(offset) if offset else next_offset))

    def do_present(self, identity: str) -> None:
        snapshot, _ = self.arriving.pop(int(identity))
        self.step(int(identity), events.SnapshotPresent(snapshot))

    def do_compact(self, identity: str, index: str, keep: str, size: str = "0") -> None:
        self.step(
            int(identity),
            events.Compact(int(index), b"state", size_bytes=int(size), keep_entries=int(keep)),
        )
        raft, disk = self.rafts[int(identity)], self.disks[int(identity)]
        disk.snapshot = raft.snapshot
        disk.entries = [entry for entry in disk.entries if entry.index >= raft.first_index]

    def do_configure(self, identity: str, *parts: str) -> None:
        lists = {
            name: tuple(map(int, ids.split(","))) if ids else ()
            for name, ids in (part.split("=") for part in parts)
        }
        self.step(int(identity), events.ProposeConfiguration(Configuration(**lists)))

    def do_persist(self, identity: str) -> None:
        write = self.writes[int(identity)].popleft()
        self.disks[int(identity)].do(write)
        self.network.extend(write.messages)
        if write.persisted is not None:
            self.step(int(identity), write.persisted)

    def take(self, route: str) -> Message:
        sender, receiver = map(int, route.split(">"))
        found = next(m for m in self.network if (m.sender, m.receiver) == (sender, receiver))
        self.network.remove(found)
        return decode_message(encode_message(found))

    def taken(self, route: str, count: str) -> list[Message]:
        sender, receiver = map(int, route.split(">"))
        waiting = sum((m.sender, m.receiver) == (sender, receiver) for m in self.network)
        return [self.take(route) for _ in range(waiting if count == "all" else int(count))]

    def do_deliver(self, route: str, count: str = "1") -> None:
        for message in self.taken(route, count):
            self.step(message.receiver, events.Received(message))

    def do_drop(self, route: str, count: str = "1") -> None:
        self.trace.extend(message_text(message) for message in self.taken(route, count))

    def do_double(self, route: str) -> None:
        message = self.take(route)
        self.network.append(message)
        self.step(message.receiver, events.Received(message))

    def do_quietly(self, *words: str) -> None:
        self.run(" ".join(words))
        self.trace = []

    def do_elect(self, identity: str, *among: str) -> None:
        self.do_campaign(identity)
        self.do_settle(*among)
        raft = self.rafts[int(identity)]
        assert raft.is_leader, f"{identity} was not elected"
        self.trace = [f"{identity}: leads term={raft.term}"]

    def do_settle(self, *among: str) -> None:
        reachable = sorted(map(int, among)) or sorted(self.rafts)
        for _ in range(10_000):
            identity = next((i for i in reachable if self.writes[i]), None)
            message = next(
                (m for m in self.network if m.receiver in reachable and m.sender in reachable), None
            )
            if identity is not None:
                self.do_persist(str(identity))
            elif arriving := [i for i in reachable if i in self.arriving]:
                self.do_stored(str(arriving[0]))
            elif wanted := [(i, self.wanted[i][0].member) for i in reachable if self.wanted[i]]:
                self.do_chunk(str(wanted[0][0]), str(wanted[0][1]))
            elif message is not None:
                self.do_deliver(f"{message.sender}>{message.receiver}")
            else:
                self.network = []
                return
        raise AssertionError("the group does not come to rest")

    def do_restart(self, identity: str) -> None:
        self.start(int(identity))

    def do_show(self) -> None:
        for identity, raft in self.rafts.items():
            status = raft.status()
            members = "".join(
                f" {peer}:{m.mode}@{m.match}/{m.next}{'' if m.is_caught_up else ' behind'}"
                for peer, m in sorted(status.members.items())
            )
            self.trace.append(
                f"{identity}: {status.role.value} term={status.term} leader={status.leader}"
                f" log={status.first_index}..{status.last_index} durable={status.durable_index}"
                f" commit={status.commit_index} {shown(status.configuration)}{members}"
            )


def blocks_of(text: str) -> list[tuple[list[str], str, str]]:
    """(comment lines, command, expected trace) of each block."""
    blocks = []
    for part in text.strip().split("\n\n"):
        lines = part.splitlines()
        comments = [line for line in lines if line.startswith("#")]
        rest = [line for line in lines if not line.startswith("#")]
        command, expected = rest[0], rest[2:] if len(rest) > 1 else []
        blocks.append((comments, command, "\n".join(expected)))
    return blocks


@pytest.mark.parametrize("path", sorted(DIRECTORY.glob("*.txt")), ids=lambda path: path.stem)
def test_transcript_leaves_the_expected_trace(path: Path) -> None:
    stage = Stage()
    written = []
    rewrites = os.environ.get("LOCKSTEP_REWRITE_TRANSCRIPTS") == "1"
    for comments, command, expected in blocks_of(path.read_text()):
        trace = stage.run(command)
        assert rewrites or trace == expected, f"{path.name}: {command}"
        written.append("\n".join([*comments, command, "----", trace]))
    if rewrites:
        path.write_text("\n\n".join(written) + "\n")


def test_there_are_transcripts() -> None:
    assert len(list(DIRECTORY.glob("*.txt"))) >= 60
