"""Owns what the demo does to its cluster and asks of it, over the doors any operator has, and its side of the
load process: start it, give it commands, hear its reports, end it.

Invariant: a node is only asked while its process runs, and a question that is not answered is asked of the
next node; only an operation's own failure is an error. The process never outlives the demo: it ends when its
connection closes, whatever closed it.
"""

from __future__ import annotations

import multiprocessing
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from lockstep.documents import read
from lockstep.documents.tablets import TabletMap
from lockstep.local.admin_client import AdminClient
from lockstep.local.clusters import LocalCluster
from lockstep.local.demo_messages import (
    HOT_KEYSPACE,
    HOT_TABLE,
    HOT_TABLETS_MAX,
    Command,
    Failed,
    Finished,
    Report,
)
from lockstep.local.demo_screen import NodeLine, node_lines
from lockstep.local.processes import State
from lockstep.values.errors import LockstepError, PeerError, PeerTimeout

#: One question while the picture waits for it.
ASK_TIMEOUT_S: Final = 1.0
#: One operation of the tour; each takes seconds.
OPERATION_TIMEOUT_S: Final = 90.0
POLL_S: Final = 0.1
#: What of a dead node's log is shown with a failure.
_ENDED: Final = ("done", "failed", "cancelled")


class DemoCluster:
    def __init__(self, local: LocalCluster) -> None:
        self.local = local
        self.status: dict[str, Any] = {}

    @property
    def epoch(self) -> int:
        return int(self.status.get("epoch") or 0)

    def running_addresses(self) -> list[str]:
        """Addresses of the nodes whose processes run."""
        states = self.local.states()
        return [node.address for node in self.local.file.nodes if states[node.name] is State.RUNNING]

    def doors(self) -> dict[int, AdminClient]:
        """Clients of the admin APIs of all nodes that run, by the nodes' ids."""
        self.refresh()
        ids = {node.get("address"): int(node["id"]) for node in self.status.get("nodes", [])}
        running = self.running_addresses()
        nodes = [node for node in self.local.file.nodes if node.address in running and node.address in ids]
        return {ids[node.address]: self.local.admin(node.name) for node in nodes}

    def refresh(self) -> bool:
        """Ask a running node for the status; False when none answers."""
        content = self.local.file
        for node in content.nodes:
            if self.local.state(node.name) is not State.RUNNING:
                continue
            try:
                self.status = self.local.admin(node.name, ASK_TIMEOUT_S).get("/v1/status")
            except LockstepError:
                continue
            return True
        return False

    def lines(self) -> list[NodeLine]:
        """Every node that the status names, with what the operating system says of it."""
        names = {
            node.address: (node.name, self.local.state(node.name).value) for node in self.local.file.nodes
        }
        return [line for line in node_lines(self.status, names) if line.state != "left"]

    def operation(self) -> str:
        """What runs now and whom it waits for, in one line; empty when nothing does."""
        for one in self.status.get("operations", []):
            waits = [f"waits for node {w.get('node')}: {w.get('reason')}" for w in one.get("waiting") or []]
            parts = [f"{one.get('kind')} of node {one.get('node')}", f"stage {one.get('stage')}", *waits]
            return ", ".join(parts)
        return ""

    def leader(self) -> str:
        """Name of the node that leads the metadata group; LockstepError when nobody does."""
        deadline = time.monotonic() + OPERATION_TIMEOUT_S
        while time.monotonic() < deadline:
            self.refresh()
            leader = self.status.get("leader")
            by_address = {node.address: node.name for node in self.local.file.nodes}
            for node in self.status.get("nodes", []):
                if node.get("id") == leader and node.get("address") in by_address:
                    return by_address[str(node["address"])]
            time.sleep(POLL_S)
        raise LockstepError("the metadata group has no leader")

    def voters(self) -> str:
        """Names of the nodes that vote on metadata, as last heard."""
        by_address = {node.address: node.name for node in self.local.file.nodes}
        voting = [str(node.get("address")) for node in self.status.get("nodes", []) if node.get("voter")]
        return ", ".join(by_address.get(address, address) for address in voting)

    def wait_until_all_serve(self) -> None:
        """Until every node that belongs to the cluster is alive, normal, and at the same epoch."""
        deadline = time.monotonic() + OPERATION_TIMEOUT_S
        while True:
            self.refresh()
            members = [node for node in self.status.get("nodes", []) if node.get("state") != "left"]
            late = [
                str(node.get("address"))
                for node in members
                if not node.get("alive") or node.get("state") != "normal" or node.get("epoch") != self.epoch
            ]
            if members and not late:
                return
            if time.monotonic() >= deadline:
                raise PeerTimeout(f"{', '.join(late) or 'the cluster'} did not come back")
            time.sleep(POLL_S)

    def wait_until_dead(self, name: str) -> None:
        """Until the cluster has noticed that the node is gone: only a dead one is replaced."""
        address = self.local.file.node(name).address
        deadline = time.monotonic() + OPERATION_TIMEOUT_S
        while time.monotonic() < deadline:
            self.refresh()
            if any(n.get("address") == address and not n.get("alive") for n in self.status.get("nodes", [])):
                return
            time.sleep(POLL_S)
        raise PeerTimeout(f"nobody noticed that {name} is gone")

    def decommission(self, name: str) -> None:
        """Ask for it, wait until it is done, and end the process of the node that left."""
        address = self.local.file.node(name).address
        self.refresh()
        node = next(n for n in self.status["nodes"] if n.get("address") == address)
        asked = {"kind": "decommission", "node": node["id"], "dry_run": False}
        request = self._any("POST", "/v1/requests", asked, avoid=name)
        deadline = time.monotonic() + OPERATION_TIMEOUT_S
        while request.get("state") not in _ENDED:
            if time.monotonic() >= deadline:
                raise PeerTimeout(f"the decommission of {name} still runs: {self.operation()}")
            time.sleep(POLL_S)
            request = self._any("GET", f"/v1/requests/{request['id']}", avoid=name)
        if request.get("state") != "done":
            raise LockstepError(f"the decommission of {name} {request['state']}: {request.get('error')}")
        self.local.stop([name])

    def hot_tablets(self) -> TabletMap:
        """Where the tablets of the hot table lie."""
        answer = self._any("GET", f"/v1/tablets?keyspace={HOT_KEYSPACE}&table={HOT_TABLE}")
        return read(TabletMap, answer)

    def wait_until_spread(self) -> TabletMap:
        """The hot table's map, once it has been split as far as it may, each living node has some of it and
        nothing moves."""
        deadline = time.monotonic() + OPERATION_TIMEOUT_S
        while True:
            told = self.hot_tablets()
            here = [node for node in told.nodes if node.tablets]
            self.refresh()
            alive = [node for node in self.status.get("nodes", []) if node.get("alive")]
            is_whole = len(told.tablets) >= HOT_TABLETS_MAX and len(here) >= len(alive) > 0
            if is_whole and not any(tablet.stage for tablet in told.tablets):
                return told
            if time.monotonic() >= deadline:
                raise PeerTimeout(f"the hot table has {len(told.tablets)} tablets on {len(here)} nodes")
            time.sleep(POLL_S)

    def logs_agree(self) -> tuple[bool, str]:
        """Whether all running nodes hold the same log: equal epochs have equal hashes."""
        heads: dict[str, tuple[int, str]] = {}
        for node in self.local.file.nodes:
            if self.local.state(node.name) is State.RUNNING:
                status = self.local.admin(node.name).get("/v1/status")
                heads[node.name] = (int(status["epoch"]), str(status["hash"]))
        if len(set(heads.values())) == 1:
            epoch, digest = next(iter(heads.values()))
            return True, f"{len(heads)} nodes at epoch {epoch}, hash {digest[:12]}"
        return False, ", ".join(f"{name} {epoch}/{digest[:12]}" for name, (epoch, digest) in heads.items())

    def copy_logs(self, directory: Path) -> None:
        """Keep the nodes' logs beyond the life of the cluster."""
        directory.mkdir(parents=True, exist_ok=True)
        for node in self.local.file.nodes:
            log = self.local.paths.log(node.name)
            if log.exists():
                shutil.copyfile(log, directory / f"{node.name}.log")

    def _any(
        self, method: str, path: str, body: dict[str, Any] | None = None, avoid: str = ""
    ) -> dict[str, Any]:
        """The answer of the first running node that gives one."""
        last: PeerError | None = None
        for node in self.local.file.nodes:
            if node.name != avoid and self.local.state(node.name) is State.RUNNING:
                try:
                    return self.local.admin(node.name).call(method, path, body)
                except PeerError as error:
                    last = error
        raise last or LockstepError("no node runs")


#: The process closes its driver when the connection closes; after this it is ended by signal.
END_TIMEOUT_S: Final = 3.0


class DemoProcess:
    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        # Imported by name in the child, so that the driver is loaded there and not here.
        self._process = context.Process(target=_child, args=(theirs,), name="lockstep-demo-load", daemon=True)
        handler: Any = _ignore_interrupts()
        try:
            self._process.start()
        finally:
            if handler is not None:
                signal.signal(signal.SIGINT, handler)
        theirs.close()

    def send(self, command: Command) -> None:
        try:
            self._connection.send(command)
        except OSError as error:
            raise LockstepError(f"the load process has ended: {error}") from error

    def heard(self) -> Iterator[Report | Finished]:
        """What it said since the last call. Raises LockstepError when it cannot go on."""
        try:
            while self._connection.poll():
                message = self._connection.recv()
                if isinstance(message, Failed):
                    raise LockstepError(f"the load process failed: {message.reason}")
                yield message
        except (EOFError, OSError) as error:
            raise LockstepError("the load process has ended without a word") from error

    def close(self) -> None:
        self._connection.close()
        self._process.join(END_TIMEOUT_S)
        if self._process.is_alive():
            self._process.kill()
            self._process.join(END_TIMEOUT_S)


def _ignore_interrupts() -> Any:
    """A child inherits that SIGINT is ignored, so an interrupt does not end it while it still imports."""
    try:
        return signal.signal(signal.SIGINT, signal.SIG_IGN)
    except ValueError:
        # Only the main thread may set handlers; elsewhere no interrupt arrives.
        return None


def _child(connection: Any) -> None:
    from lockstep.local.demo_traffic import main

    main(connection)
