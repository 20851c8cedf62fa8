"""The operations of the admin API that concern the metadata service and the proofs of its log.

Invariant: here is only which operations there are and what they take; each is done by the module it names.

The metadata service for operators: snapshots, truncation, dumps.

Invariant: a dump is made once for its epoch and answered piece by piece from a file that the next start of
the node forgets, so that its size is bounded by the disk and not by memory.
"""

from __future__ import annotations

import asyncio
import base64
from typing import Any

from lockstep.documents.service import DumpPiece, Snapshot, Snapshots
from lockstep.metadata.groups.membership import ServiceWish
from lockstep.metadata.log.snapshot_entries import TakeSnapshot, TruncateLog
from lockstep.metadata.log.snapshot_file import dump_file
from lockstep.node.log import metadata_store
from lockstep.node.log.metadata_past import Past
from lockstep.node.services import NodeServices
from lockstep.server.admin.http import HttpRequest
from lockstep.server.admin.operations import Operation, Parameter, get, integer, later, now
from lockstep.server.admin.service_requests import LIVE_PATH as VOTERS_LIVE_PATH
from lockstep.server.admin.service_requests import ServiceRequests
from lockstep.server.reports.cms_describe import Proofs, described
from lockstep.server.reports.request_plans import planned
from lockstep.values.errors import ConfigurationError
from lockstep.values.limits import SNAPSHOT_PIECE_BYTES_MAX

Document = dict[str, Any]


class Cms:
    def __init__(self, node: NodeServices) -> None:
        self._node = node
        self._dumping = asyncio.Lock()

    def snapshots(self) -> Snapshots:
        """The snapshots that this node keeps, and from where on it has the log."""
        state = self._node.log.state
        service = state.current.service
        kept = (
            Snapshot(
                info.epoch,
                info.digest.hex(),
                info.entry.hash.hex(),
                info.size_bytes,
                info.entry.commit_time_us,
            )
            for info in state.store.infos.values()
        )
        return Snapshots(
            epoch=state.epoch,
            first_epoch=state.first_epoch,
            snapshot_epoch=service.snapshot_epoch,
            truncated_epoch=service.truncated_epoch,
            truncated_here=state.store.truncated_to,
            log_bytes=state.store.log_bytes,
            oldest_value=Past(state).oldest_epoch,
            snapshots=tuple(kept),
        )

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
        epoch = await self._node.log.submit(wanted)
        return {"schema": "cms-change/1", "epoch": epoch}

    async def truncate(self, body: Any) -> Document:
        """Let all nodes drop entries up to an epoch, or up to the latest snapshot when none is named."""
        wanted = body.get("epoch") if isinstance(body, dict) else None
        if wanted is None:
            wanted = self._node.log.cluster.service.snapshot_epoch
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
        epoch = await self._node.log.submit(change)
        return {"schema": "cms-change/1", "epoch": epoch, "truncated_epoch": wanted}

    async def dump(self, epoch: int | None, offset: int, *, entries: bool) -> DumpPiece:
        """A piece of the dump of an epoch, in base64; the asker goes on until it has `size_bytes`."""
        state = self._node.log.state
        wanted = state.epoch if epoch is None else epoch
        async with self._dumping:
            path = await self._dumped(wanted, entries)
            disk = self._node.context.runtime.disk
            data = disk.read_at(path, offset, SNAPSHOT_PIECE_BYTES_MAX)
            encoded = base64.b64encode(data).decode()
            return DumpPiece(epoch=wanted, offset=offset, size_bytes=disk.size(path), data=encoded)

    async def _dumped(self, epoch: int, entries: bool) -> str:
        """The file of this dump, made unless it is there; those of other dumps go."""
        disk = self._node.context.runtime.disk
        path = metadata_store.dump_path(epoch, entries)
        if disk.exists(path):
            return path
        for older in metadata_store.dumps(disk):
            disk.remove(older)
        past = Past(self._node.log.state)
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


_FROM = Parameter("from", "First epoch", "integer", True)
_RECONFIGURE_BODY = {
    "type": "object",
    "properties": {
        "size": {"type": "integer"},
        "automatic": {"type": "boolean"},
        "nodes": {"type": "array", "items": {"type": "integer"}},
        "dry_run": {"type": "boolean"},
    },
}
_REASON_BODY = {
    "type": "object",
    "properties": {"reason": {"type": "string"}, "dry_run": {"type": "boolean"}},
}


class ServiceOperations:
    def __init__(self, node: NodeServices) -> None:
        self._node = node
        self._requests = ServiceRequests(node)
        self._cms = Cms(node)

    def live(self) -> dict[str, Any]:
        """The voters as this node alone sees them."""
        return self._requests.live()

    def operations(self) -> list[Operation]:
        return [
            get(
                "/v1/cms",
                "The metadata service: members, both groups, a running change, the log",
                later(lambda *_: described(self._node, self._requests)),
            ),
            *self._proof_operations(),
            *self._service_operations(),
            *self._cms_operations(),
        ]

    def _proof_operations(self) -> list[Operation]:
        proofs = Proofs(self._node)
        return [
            get(
                "/v1/metadata/proof",
                "This node's log, checked entry by entry, and hashes to compare with other nodes'",
                later(lambda request, _: proofs.proof(integer(request, "from"))),
                _FROM,
            ),
            get(
                "/v1/metadata/digest",
                "The digest of the metadata at an epoch, whole and by part",
                later(lambda request, _: proofs.digest(integer(request, "epoch"))),
                Parameter("epoch", "Which epoch", "integer", True),
            ),
        ]

    def _cms_operations(self) -> list[Operation]:
        cms = self._cms
        return [
            get("/v1/cms/snapshots", "Snapshots of the metadata kept here", now(lambda *_: cms.snapshots())),
            Operation(
                "POST",
                "/v1/cms/snapshot",
                "Take a snapshot of the metadata on every node",
                later(lambda request, _: cms.snapshot(request.body)),
                "The epoch of its entry",
                body=_REASON_BODY,
            ),
            Operation(
                "POST",
                "/v1/cms/truncate",
                "Let nodes drop log entries that the latest snapshot holds",
                later(lambda request, _: cms.truncate(request.body)),
                "The epoch of its entry",
                body={
                    "type": "object",
                    "properties": {"epoch": {"type": "integer"}, "dry_run": {"type": "boolean"}},
                },
            ),
            Operation(
                "GET",
                "/v1/cms/dump",
                "A piece of the file of the metadata at an epoch",
                later(self._dump),
                "The piece in base64, and the size of the file",
                (
                    Parameter("epoch", "The newest when absent", "integer"),
                    Parameter("offset", "First byte of the piece", "integer"),
                    Parameter(
                        "entries", "Begin at the snapshot before it, with all entries since", "boolean"
                    ),
                ),
                holds_secrets=True,
            ),
        ]

    def _service_operations(self) -> list[Operation]:
        """Who votes in the metadata group, and whether it takes changes."""
        requests = self._requests

        def wish(path: str, summary: str, wished: ServiceWish) -> Operation:
            perform = later(lambda request, _: requests.wish(wished, request.body))
            return Operation("POST", path, summary, perform, "The voters", body=_REASON_BODY)

        return [
            get(
                "/v1/cms/reconfiguration",
                "The voters and a running change",
                later(lambda *_: requests.status()),
            ),
            get(VOTERS_LIVE_PATH, "The voters as this node alone sees them", now(lambda *_: requests.live())),
            Operation(
                "POST",
                "/v1/cms/reconfigure",
                "Have another number of voters or other voters, or plan it with dry_run",
                later(lambda request, _: requests.reconfigure(request.body)),
                "The voters, or the plan",
                body=_RECONFIGURE_BODY,
            ),
            Operation(
                "POST",
                "/v1/cms/cancel",
                "Stop a change of the voters; what is done stays",
                later(lambda request, _: requests.cancel(request.body)),
                "The voters",
                body=_REASON_BODY,
            ),
            wish("/v1/cms/resume", "Let voters be changed automatically again", ServiceWish.RESUME),
            wish("/v1/cms/freeze", "Refuse changes of schema and topology", ServiceWish.FREEZE),
            wish("/v1/cms/thaw", "Take changes of schema and topology again", ServiceWish.THAW),
        ]

    async def _dump(self, request: HttpRequest, _values: dict[str, str]) -> DumpPiece:
        epoch = integer(request, "epoch") if "epoch" in request.query else None
        offset = integer(request, "offset") if "offset" in request.query else 0
        if offset < 0:
            raise ConfigurationError("offset must not be negative")
        return await self._cms.dump(epoch, offset, entries=request.query.get("entries") == "true")
