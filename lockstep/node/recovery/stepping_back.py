"""Taking the last entries out of the metadata's files, of a node that takes part in nothing yet.

Invariant: what is left after a crash at any point is a shorter history that loads, for the newest goes first;
a hash of what goes is nowhere before any of it goes.
"""

from __future__ import annotations

from typing import Any

from lockstep.node.log import metadata_store as files
from lockstep.node.log.journal import Journal
from lockstep.runtime.ports import Disk
from lockstep.values.codec import Decoder, decoder, encode

_CHECKPOINTS: Decoder[list[tuple[int, bytes]]] = decoder(list[tuple[int, bytes]])


async def step_back(disk: Disk, epoch: int) -> int:
    """Have the files end with an epoch that they can be brought to from what is kept before it; how many
    entries went. CorruptFile, DiskRefused."""
    assert epoch >= 1, "a member has a first epoch"
    await _forget_hashes(disk, epoch)
    for number in reversed(files.snapshots(disk)):
        if number > epoch:
            disk.remove(files.snapshot_path(number))
            await disk.sync_names(files.DIRECTORY)
    gone = 0
    for first in reversed(files.segments(disk)):
        entries = files.read_segment(disk, first)
        kept = [one for one in entries if one.epoch <= epoch]
        if len(kept) == len(entries) and kept:
            break
        gone += len(entries) - len(kept)
        await _rewritten(disk, files.segment_path(first), [kept] if kept else [])
    return gone


async def _forget_hashes(disk: Disk, epoch: int) -> None:
    known = [pair for record in Journal(disk, files.CHECKPOINTS).load_as(_CHECKPOINTS) for pair in record]
    kept = [pair for pair in known if pair[0] <= epoch]
    if len(kept) < len(known):
        await _rewritten(disk, files.CHECKPOINTS, [kept] if kept else [])


async def _rewritten(disk: Disk, path: str, records: list[Any]) -> None:
    """Put a file of these records in the place of the one that is there; none is left for no record."""
    if not records:
        disk.remove(path)
    else:
        partial = path + files.PARTIAL
        if disk.exists(partial):
            disk.remove(partial)
        journal = Journal(disk, partial)
        for record in records:
            await journal.append(encode(record))
        disk.rename(partial, path)
    await disk.sync_names(files.DIRECTORY)
