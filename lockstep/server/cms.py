"""The metadata service for operators: snapshots, truncation, dumps.

Invariant: a dump is made once for its epoch and answered piece by piece from a file that the next start of
the node forgets, so that its size is bounded by the disk and not by memory.
"""

from __future__ import annotations

import asyncio
import base64
from typing import TYPE_CHECKING, Any

from lockstep.metadata.dump import dump_file
from lockstep.metadata.snapshot_entries import TakeSnapshot, TruncateLog
from lockstep.node import metadata_files
from lockstep.node.metadata_past import Past
from lockstep.server.planning import planned
from lockstep.values.errors import ConfigurationError
from lockstep.values.limits import SNAPSHOT_PIECE_BYTES_MAX

if TYPE_CHECKING:
    from lockstep.node.node import Node

Document = dict[str, Any]


class Cms:
    def __init__(self, node: Node) -> None:
        self._node = node
        self._dumping = asyncio.Lock()

    def snapshots(self) -> Document:
        """The snapshots that this node keeps, and from where on it has the log."""
        state = self._node.state
        service = state.current.service
        return {
            "schema": "cms-snapshots/1",
            "epoch": state.epoch,
            "first_epoch": state.first_epoch,
            "snapshot_epoch": service.snapshot_epoch,
            "truncated_epoch": service.truncated_epoch,
            "truncated_here": state.store.truncated_to,
            "log_bytes": state.store.log_bytes,
            "oldest_value": Past(state).oldest_epoch,
            "snapshots": [
                {
                    "epoch": info.epoch,
                    "digest": info.digest.hex(),
                    "hash": info.entry.hash.hex(),
                    "size_bytes": info.size_bytes,
                    "taken_at_us": info.entry.commit_time_us,
                }
                for info in state.store.infos.values()
            ],
        }

    async def snapshot(self, body: Any) -> Document:
        """Take one now. Rejected when nothing changed since the last."""
        reason = body.get("reason", "") if isinstance(body, dict) else ""
        if not isinstance(reason, str) or len(reason) > 200:
            raise ConfigurationError("the reason is a text of at most 200 characters")
        wanted = TakeSnapshot(reason or "asked for")
        if _dry_run(body):
            steps = (
                "an entry with the digest of the metadata before it is appended",
                "every node that applies it writes that metadata to disk, and stops if its digest differs",
                "every node drops what its own retention no longer asks for",
            )
            return planned(self._node, wanted, steps, "none is needed: a snapshot takes nothing away")
        epoch = await self._node.submit(wanted)
        return {"schema": "cms-change/1", "epoch": epoch}

    async def truncate(self, body: Any) -> Document:
        """Let all nodes drop entries up to an epoch, or up to the latest snapshot when none is named."""
        wanted = body.get("epoch") if isinstance(body, dict) else None
        if wanted is None:
            wanted = self._node.cluster.service.snapshot_epoch
        if not isinstance(wanted, int) or wanted < 0:
            raise ConfigurationError("the epoch must be a whole number")
        change = TruncateLog(wanted)
        if _dry_run(body):
            steps = (
                f"an entry allows to drop the log up to epoch {wanted}",
                "every node whose snapshot holds these entries drops them, oldest segment first",
                "a node with an archive directory copies them there before",
            )
            way_back = "none, but for the archive: older epochs cannot be shown or compared any more"
            return planned(self._node, change, steps, way_back)
        epoch = await self._node.submit(change)
        return {"schema": "cms-change/1", "epoch": epoch, "truncated_epoch": wanted}

    async def dump(self, epoch: int | None, offset: int, *, entries: bool) -> Document:
        """A piece of the dump of an epoch, in base64; the asker goes on until it has `size_bytes`."""
        state = self._node.state
        wanted = state.epoch if epoch is None else epoch
        async with self._dumping:
            path = await self._dumped(wanted, entries)
            disk = self._node.runtime.disk
            data = disk.read_at(path, offset, SNAPSHOT_PIECE_BYTES_MAX)
            return {
                "schema": "cms-dump/1",
                "epoch": wanted,
                "offset": offset,
                "size_bytes": disk.size(path),
                "data": base64.b64encode(data).decode(),
            }

    async def _dumped(self, epoch: int, entries: bool) -> str:
        """The file of this dump, made unless it is there; those of other dumps go."""
        disk = self._node.runtime.disk
        path = metadata_files.dump_path(epoch, entries)
        if disk.exists(path):
            return path
        for older in metadata_files.dumps(disk):
            disk.remove(older)
        past = Past(self._node.state)
        value, following = await past.lead_up(epoch) if entries else (await past.value_at(epoch), [])
        unfinished = path.replace("dump-", "dumping-")
        if disk.exists(unfinished):
            disk.remove(unfinished)
        for part in dump_file(value, following):
            disk.append(unfinished, part)
            await asyncio.sleep(0)
        disk.rename(unfinished, path)
        return path


def _dry_run(body: Any) -> bool:
    wanted = body.get("dry_run", False) if isinstance(body, dict) else False
    if not isinstance(wanted, bool):
        raise ConfigurationError("dry_run is true or false")
    return wanted
