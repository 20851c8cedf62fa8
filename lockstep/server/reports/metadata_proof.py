"""What a node can prove of its metadata: an unbroken log, and the digest of the value at an epoch.

Invariant: hashes are computed anew from the bytes of each entry, and digests from the value, so that damage
and divergence show; a past value is asked for by epoch and replayed, never remembered.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from lockstep.metadata.log.digest import part_digests, state_digest
from lockstep.metadata.log.entries import LogEntry, verify_chain
from lockstep.node.log import metadata_files as files
from lockstep.node.log.metadata_past import Past
from lockstep.node.services import NodeServices
from lockstep.values.errors import ConfigurationError, CorruptFile
from lockstep.values.limits import ENTRIES_PER_TURN_MAX, LOG_CHECKPOINT_EPOCHS

Document = dict[str, Any]


class Proofs:
    def __init__(self, node: NodeServices) -> None:
        self._node = node
        #: One at a time: each reads the whole log and the archive.
        self._proving = asyncio.Lock()

    async def proof(self, first: int) -> Document:
        """This node's log from `first` on, as far back as it is kept here or in its archive, checked entry by
        entry; and the hashes of some epochs (each checkpoint, each snapshot, the newest) to compare."""
        if first < 1:
            raise ConfigurationError(f"epoch {first} is none; the first epoch is 1")
        async with self._proving:
            return await self._proved(first)

    async def _proved(self, first: int) -> Document:
        state = self._node.log.state
        chain = _Chain(first)
        problem: Document | None = None
        for disk in state.disks[1:]:
            for number in files.segments(disk):
                if number >= state.first_epoch:
                    break
                try:
                    chain.feed([e for e in files.read_segment(disk, number) if e.epoch < state.first_epoch])
                except CorruptFile as damage:
                    problem = problem or {"epoch": number, "reason": str(damage)}
                await asyncio.sleep(0)
        # What is dropped meanwhile was verified before; what comes meanwhile is the next proof's.
        kept, newest, newest_hash = list(state.entries), state.epoch, state.current.hash
        for at in range(0, len(kept), ENTRIES_PER_TURN_MAX):
            chain.feed(kept[at : at + ENTRIES_PER_TURN_MAX])
            await asyncio.sleep(0)
        chain.end(newest, newest_hash)
        marks = {epoch: mark for epoch, mark in state.store.checkpoints.items() if epoch >= first}
        marks |= {info.epoch: info.entry.hash for info in state.store.infos.values() if info.epoch >= first}
        for epoch, mark in chain.marks.items():
            if marks.setdefault(epoch, mark) != mark and problem is None:
                problem = {"epoch": epoch, "reason": f"checkpoint and log differ at epoch {epoch}"}
        problem = chain.problem or problem
        broken = state.broken
        return {
            "schema": "metadata-proof/1",
            "node": self._node.context.own_id(),
            "epoch": newest,
            "hash": newest_hash.hex(),
            "oldest": max(chain.oldest, first) if newest else 0,
            "oldest_value": Past(state).oldest_epoch,
            "problem": problem,
            "broken": str(broken) if broken is not None else None,
            "marks": [[epoch, marks[epoch].hex()] for epoch in sorted(marks)],
        }

    async def digest(self, epoch: int) -> Document:
        """The digest of the value at an epoch, whole and by part. Errors as of Past.value_at."""
        async with self._proving:
            value = await Past(self._node.log.state).value_at(epoch)
        return {
            "schema": "metadata-digest/1",
            "node": self._node.context.own_id(),
            "epoch": value.epoch,
            "hash": value.hash.hex(),
            "digest": state_digest(value).hex(),
            "parts": {name: digest.hex() for name, digest in part_digests(value)},
        }


class _Chain:
    """Feeds on entries in order. A gap, as an installed snapshot leaves it, begins the chain anew."""

    def __init__(self, first: int) -> None:
        self._first = first
        self._last: LogEntry | None = None
        self.oldest = 0
        self.problem: Document | None = None
        self.marks: dict[int, bytes] = {}

    def feed(self, entries: Sequence[LogEntry]) -> None:
        for entry in entries:
            last = self._last
            if last is not None and entry.epoch <= last.epoch:
                continue
            if last is None or entry.epoch != last.epoch + 1:
                self.oldest, last = entry.epoch, None
            before = (last.epoch, last.hash) if last is not None else (entry.epoch - 1, entry.previous_hash)
            reason = verify_chain((entry,), epoch=before[0], previous_hash=before[1])
            if reason is not None and entry.epoch >= self._first:
                self.problem = self.problem or {"epoch": entry.epoch, "reason": reason}
            if entry.epoch % LOG_CHECKPOINT_EPOCHS == 0 and entry.epoch >= self._first:
                self.marks[entry.epoch] = entry.hash
            self._last = entry

    def end(self, epoch: int, newest_hash: bytes) -> None:
        """The log must lead to the value that is served."""
        last = self._last
        if last is None or last.epoch < epoch:
            self.oldest = epoch + 1
        elif last.epoch == epoch and last.hash != newest_hash and self.problem is None:
            self.problem = {"epoch": epoch, "reason": "the value is not the one that the log leads to"}
        if epoch:
            self.marks[epoch] = newest_hash
