"""Owns the paths of the admin API that commands call; `local.admin_client` owns the exchange itself.

Invariant: every answer is a JSON object with a `schema`; this module adds nothing to it.
"""

from __future__ import annotations

import base64
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import click
import msgspec

from lockstep.documents import read
from lockstep.documents.runs import ReadSessions
from lockstep.documents.service import Digest, DumpPiece, LoggedEntries, Proof
from lockstep.documents.status import ListedNode, Nodes
from lockstep.local.admin_client import AdminClient, Credential, of_role, of_token_file
from lockstep.local.clusters import found_for, local_addresses
from lockstep.node.configuration import split_address
from lockstep.values.errors import ConfigurationError, LockstepError
from lockstep.values.limits import LOG_FETCH_ENTRIES_MAX

DEFAULT_HOST: Final = "127.0.0.1:7080"
DEFAULT_ADMIN_PORT: Final = 7080
#: Where a command keeps what its options say of credentials, until a client is made.
SHOWN: Final = "lockstep.credentials"
PASSWORD_VARIABLE: Final = "LOCKSTEP_PASSWORD"


class ClusterClient(msgspec.Struct, frozen=True):
    """The operations of the admin API at one node."""

    admin: AdminClient

    def status(self) -> dict[str, Any]:
        return self.admin.get("/v1/status")

    def gossip_inject(self, wanted: Mapping[str, Any]) -> dict[str, Any]:
        return self.admin.post("/v1/gossip/inject", dict(wanted))

    def gossip(self, node: str | None = None) -> dict[str, Any]:
        return self.admin.get("/v1/gossip", node=node)

    def nodes(self) -> dict[str, Any]:
        return self.admin.get("/v1/nodes")

    def node_list(self) -> tuple[ListedNode, ...]:
        return read(Nodes, self.nodes()).nodes

    def features(self) -> dict[str, Any]:
        return self.admin.get("/v1/features")

    def placements(self, keyspace: str, table: str | None = None) -> dict[str, Any]:
        return self.admin.get("/v1/placements", keyspace=keyspace, table=table)

    def describe(self, keyspace: str, table: str | None) -> dict[str, Any]:
        return self.admin.get("/v1/describe", keyspace=keyspace, table=table)

    def metadata(self, epoch: int | None) -> dict[str, Any]:
        return self.admin.get("/v1/metadata", epoch=epoch)

    def metadata_log(self, first: int, last: int, *, available: bool = False) -> dict[str, Any]:
        """Entries `first` to `last`, both included; the node may answer fewer, from `first` on, or with
        `available` from the oldest that it keeps."""
        wanted = "true" if available else None
        return self.admin.get("/v1/metadata/log", **{"from": first, "to": last, "available": wanted})

    def metadata_diff(self, one: int, other: int) -> dict[str, Any]:
        return self.admin.get("/v1/metadata/diff", **{"from": one, "to": other})

    def metadata_proof(self, first: int) -> Proof:
        return read(Proof, self.admin.get("/v1/metadata/proof", **{"from": first}))

    def metadata_digest(self, epoch: int) -> Digest:
        return read(Digest, self.admin.get("/v1/metadata/digest", epoch=epoch))

    def ring(self) -> dict[str, Any]:
        """As the asked node has it."""
        return self.admin.get("/v1/ring")

    def requests(self) -> dict[str, Any]:
        return self.admin.get("/v1/requests")

    def request(self, request_id: str) -> dict[str, Any]:
        return self.admin.get(f"/v1/requests/{request_id}")

    def submit(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Ask for a topology operation, or what it would do."""
        return self.admin.post("/v1/requests", dict(request))

    def cancel(self, request_id: str) -> dict[str, Any]:
        return self.admin.delete(f"/v1/requests/{request_id}")

    def exclude(self, wanted: Mapping[str, Any]) -> dict[str, Any]:
        return self.admin.post("/v1/excluded", dict(wanted))

    def repair(self, repair_id: int) -> dict[str, Any]:
        return self.admin.get(f"/v1/repairs/{repair_id}")

    def begin_repair(self, wanted: Mapping[str, Any]) -> dict[str, Any]:
        """Begin a repair, or ask what it would do."""
        return self.admin.post("/v1/repairs", dict(wanted))

    def cancel_repair(self, repair_id: int) -> dict[str, Any]:
        return self.admin.delete(f"/v1/repairs/{repair_id}")

    def backups(self) -> dict[str, Any]:
        return self.admin.get("/v1/backups")

    def begin_backup(self, wanted: Mapping[str, Any]) -> dict[str, Any]:
        """Begin a backup, or ask what it would do."""
        return self.admin.post("/v1/backups", dict(wanted))

    def remove_backup(self, name: str) -> dict[str, Any]:
        return self.admin.delete(f"/v1/backups/{name}")

    def begin_restore(self, name: str, wanted: Mapping[str, Any]) -> dict[str, Any]:
        """Begin a restore, or ask what it would do."""
        return self.admin.post(f"/v1/backups/{name}/restore", dict(wanted))

    def backup_run(self, run_id: int) -> dict[str, Any]:
        return self.admin.get(f"/v1/backup-runs/{run_id}")

    def loads(self) -> dict[str, Any]:
        return self.admin.get("/v1/loads")

    def cancel_load(self, wanted: Mapping[str, Any]) -> dict[str, Any]:
        """End a bulk load, or ask what that would do."""
        return self.admin.post("/v1/loads/cancel", dict(wanted))

    def reconciling(self) -> dict[str, Any]:
        """Of the asked node's tracked ranges."""
        return self.admin.get("/v1/reconcile")

    def reconcile_audit(self) -> dict[str, Any]:
        return self.admin.post("/v1/reconcile/audit", {})

    def read_sessions(self) -> ReadSessions:
        """Those of the asked node."""
        return read(ReadSessions, self.admin.get("/v1/read-sessions"))

    def end_read_session(self, session_id: str) -> None:
        """At the asked node."""
        self.admin.delete(f"/v1/read-sessions/{session_id}")

    def story(self, kind: str, name: str, **more: str | None) -> dict[str, Any]:
        """What the log did to a thing. `more`: keyspace and table of a token."""
        return self.admin.get("/v1/story", kind=kind, id=name, **more)

    def cms(self) -> dict[str, Any]:
        return self.admin.get("/v1/cms")

    def group_local(self, group: str, nodes: str | None) -> dict[str, Any]:
        return self.admin.get(f"/management/v1/recovery/{group}/state/local", nodes=nodes)

    def group_global(self, group: str) -> dict[str, Any]:
        return self.admin.get(f"/management/v1/recovery/{group}/state/global")

    def cluster_state(self) -> dict[str, Any]:
        return self.admin.get("/management/v1/cluster/state")

    def cluster_reset(self, wanted: Mapping[str, Any]) -> dict[str, Any]:
        return self.admin.post("/management/v1/recovery/cluster/reset", wanted)

    def metadata_held(self, epoch: int) -> dict[str, Any]:
        return self.admin.post("/management/v1/recovery/metadata/held", {"epoch": epoch})

    def group_truncate(self, group: str, wanted: Mapping[str, Any]) -> dict[str, Any]:
        """The plan; nothing is changed."""
        return self.admin.post(f"/management/v1/recovery/{group}/truncate", dict(wanted))

    def metadata_load(self, wanted: Mapping[str, Any]) -> dict[str, Any]:
        """The plan; nothing is changed."""
        return self.admin.post("/management/v1/recovery/metadata/load", dict(wanted))

    def force_cms(self, group: str, wanted: Mapping[str, Any]) -> dict[str, Any]:
        """The plan; nothing is changed."""
        return self.admin.post(f"/management/v1/recovery/{group}/force-cms", dict(wanted))

    def replacement_prepare(self, plan: str) -> dict[str, Any]:
        return self.admin.post("/management/v1/recovery/metadata/prepare", {"plan": plan})

    def replacement_decide(self, attempt: str, *, go: bool) -> dict[str, Any]:
        return self.admin.post("/management/v1/recovery/metadata/decide", {"attempt": attempt, "go": go})

    def recovery_audit(self) -> dict[str, Any]:
        return self.admin.get("/management/v1/recovery/audit")

    def group_restart(self, group: str, nodes: Sequence[str]) -> dict[str, Any]:
        return self.admin.post(f"/management/v1/recovery/{group}/restart", {"nodes": list(nodes)})

    def group_reconfigure(self, group: str, nodes: Sequence[str], *, dry_run: bool) -> dict[str, Any]:
        path = f"/management/v1/recovery/{group}/reconfigure"
        return self.admin.post(path, {"nodes": list(nodes), "dryRun": dry_run})

    def cluster_migrate(self, wanted: Mapping[str, Any]) -> dict[str, Any]:
        return self.admin.post("/management/v1/recovery/cluster/migrate", wanted)

    def cms_snapshots(self) -> dict[str, Any]:
        return self.admin.get("/v1/cms/snapshots")

    def cms_snapshot(self, reason: str, *, dry_run: bool) -> dict[str, Any]:
        return self.admin.post("/v1/cms/snapshot", {"reason": reason, "dry_run": dry_run})

    def cms_truncate(self, epoch: int | None, *, dry_run: bool) -> dict[str, Any]:
        named = {} if epoch is None else {"epoch": epoch}
        return self.admin.post("/v1/cms/truncate", {**named, "dry_run": dry_run})

    def cms_dump(self, epoch: int, *, entries: bool) -> Iterator[bytes]:
        """The file of a dump, piece by piece."""
        offset, size = 0, 1
        while offset < size:
            asked = {"epoch": epoch, "offset": offset, "entries": "true" if entries else None}
            piece = read(DumpPiece, self.admin.get("/v1/cms/dump", **asked))
            data = base64.b64decode(piece.data)
            if not data:
                raise LockstepError(f"the node answered an empty piece at byte {offset} of {size}")
            yield data
            offset, size = offset + len(data), piece.size_bytes

    def at(self, address: str, admin_port: int, timeout_s: float = 0.0) -> ClusterClient:
        """The same operations at another node: a role shows the same there, a token is of one node alone.
        `timeout_s`: another one than here, where it is given."""
        shown = self.admin.credential
        if not shown.is_of_role:
            shown = found_for(address, admin_port, shown.ca_file)
        return ClusterClient(AdminClient(address, admin_port, timeout_s or self.admin.timeout_s, shown))

    def log_entries(self, first: int, last: int, *, available: bool = False) -> list[dict[str, Any]]:
        """All entries from `first` (with `available`: or the oldest that is kept) to `last`, fetched in
        several calls; stops where the node has no more."""
        entries: list[dict[str, Any]] = []
        at = first
        while at <= last:
            newest = last if available else min(last, at + LOG_FETCH_ENTRIES_MAX - 1)
            answer = self.metadata_log(at, newest, available=available)
            part = read(LoggedEntries, answer).entries
            if not part or part[-1].epoch < at:
                break
            entries.extend(answer["entries"])
            at = part[-1].epoch + 1
        return entries


def connect(host: str, timeout_s: float) -> ClusterClient:
    """A client for `host` or `host:port`; nothing is sent yet."""
    address, port = split_address(host, DEFAULT_ADMIN_PORT)
    return ClusterClient(AdminClient(address, port, timeout_s, _credential(address, port)))


def _credential(address: str, port: int) -> Credential:
    """What the options of the running command say, or else what is at hand for that address."""
    context = click.get_current_context(silent=True)
    shown = context.meta.get(SHOWN, {}) if context is not None else {}
    ca_file = shown.get("ca_file") or ""
    if shown.get("token_file"):
        return of_token_file(Path(shown["token_file"]), ca_file)
    if shown.get("user"):
        return of_role(shown["user"], _password(shown["user"]), ca_file)
    return found_for(address, port, ca_file)


def _password(user: str) -> str:
    """Of the environment, else asked for where somebody sits at a terminal. ConfigurationError."""
    password = os.environ.get(PASSWORD_VARIABLE, "")
    if not password and sys.stdin.isatty():
        password = str(click.prompt(f"Password of {user}", hide_input=True, err=True))
    if not password:
        raise ConfigurationError(f"{user} has no password here", hint=f"set {PASSWORD_VARIABLE}")
    return password


def node_id(nodes: Sequence[ListedNode], wanted: str) -> int:
    """The id of the node that `wanted` names: its id, host id or address, or its name in the local cluster
    that these nodes are. ConfigurationError if none."""
    named = local_addresses(wanted, {node.admin_port for node in nodes})
    for node in nodes:
        if wanted in (str(node.id), node.host_id, node.address) or node.address in named:
            return node.id
    known = ", ".join(f"{node.id} ({node.address})" for node in nodes)
    raise ConfigurationError(f"no node is called {wanted}", hint=f"nodes by id and address: {known}")
