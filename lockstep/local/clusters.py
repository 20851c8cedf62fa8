"""Owns the life of a local cluster: create, start, add, break, mend, stop, destroy; and which credential a
command shows to a node that is named by address.

Invariant: the directory is the truth. A LocalCluster object keeps no state of processes in memory, so a
command line call, a test and the demo can take turns on the same cluster. A token goes only to the address
whose node keeps it; nothing is asked of any node.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import sys
from collections.abc import Callable, Mapping, Sequence, Set
from pathlib import Path
from types import TracebackType
from typing import Any, Final

import msgspec

from lockstep.local import admin_client, layout, nursery, processes
from lockstep.local.admin_client import AdminClient, Credential, class_by_code, of_node, revived
from lockstep.local.layout import ClusterFile, LocalNode, Paths
from lockstep.local.processes import State, node_environment
from lockstep.local.waiting import VOTERS_TIMEOUT_S, await_moving, await_tablets, await_voters
from lockstep.node.settings import PASSWORD_AUTHENTICATORS
from lockstep.values.errors import (
    CannotApply,
    ConfigurationError,
    LockstepError,
    PeerTimeout,
    PreconditionError,
)

#: `-P`: a folder named lockstep in the directory of the caller must not shadow the installed package.
NODE_COMMAND: Final = (sys.executable, "-P", "-m", "lockstep.server.main")
#: Founders elect and open their doors within a second; a joining node also streams its ranges.
START_TIMEOUT_S: Final = 60.0
#: A node that is gone is counted as down within this, unless the others are busy.
NOTICE_TIMEOUT_S: Final = 5.0
#: A node that got SIGTERM flushes and closes well within this; after it the process is killed.
STOP_TIMEOUT_S: Final = 10.0
#: What of a log is read to find out why a node did not start.
LOG_TAIL_BYTES: Final = 64 * 1024
#: Of a join secret, before it is written as text.
JOIN_SECRET_BYTES: Final = 32
#: Of a node without data, once it serves; measured on clusters of 3 to 40.
NODE_MEMORY_BYTES: Final = 80 << 20
_CONNECT_TIMEOUT_S: Final = 0.2


class Known:
    """What a cluster's directory, its processes and its nodes' own word tell; nothing is changed."""

    def __init__(self, paths: Paths, command: Sequence[str] = NODE_COMMAND) -> None:
        self.paths = paths
        self._command = tuple(command)

    @property
    def name(self) -> str:
        return self.paths.root.name

    @property
    def file(self) -> ClusterFile:
        return layout.read(self.paths)

    @property
    def contact_points(self) -> list[str]:
        """Addresses for a driver; all nodes share `file.cql_port`."""
        return [node.address for node in self.file.nodes]

    def state(self, name: str) -> State:
        return processes.look(processes.recorded(self.paths.pid(name)))

    def states(self) -> dict[str, State]:
        """Node name -> state of its process, in node order."""
        return {node.name: self.state(node.name) for node in self.file.nodes}

    def admin(self, name: str, timeout_s: float = 10.0) -> AdminClient:
        """A client of that node's admin API."""
        content = self.file
        return AdminClient(content.node(name).address, content.admin_port, timeout_s, self.credential(name))

    def credential(self, name: str) -> Credential:
        """What that node's admin API is shown."""
        certificate = str(self.file.settings.get("tls", {}).get("certificate", ""))
        return of_node(self.paths.data(name), certificate)

    def next_node(self, *, dc: str = "dc1", rack: str = "rack1", replaces: str = "") -> LocalNode:
        """The node that `add` would start; nothing is made yet."""
        content = self.file
        index = 1 + max(int(node.name.removeprefix("n")) for node in content.nodes)
        if index > layout.LOCAL_NODES_MAX:
            raise ConfigurationError(f"a local cluster has at most {layout.LOCAL_NODES_MAX} nodes")
        address = layout.address_at(content.first_address, index - 1)
        if not replaces:
            return LocalNode(f"n{index}", address, dc, rack)
        dead = content.node(self.name_of(replaces))
        if self.state(dead.name) is not State.STOPPED:
            raise PreconditionError(
                f"{dead.name} runs: only a dead node is replaced",
                hint=f"lockstep cluster kill {self.name} {dead.name}",
            )
        return LocalNode(f"n{index}", address, dead.dc, dead.rack, replaces=self.node_id(dead.name))

    def name_of(self, node: str) -> str:
        """The name here of a node that is given by it or by its id in the cluster. ConfigurationError when
        there is none, PeerError when nobody answers."""
        content = self.file
        if not node.isdecimal():
            return content.node(node).name
        for known in self.any_admin().get("/v1/nodes").get("nodes", []):
            if known["id"] == int(node):
                return next(one.name for one in content.nodes if one.address == known["address"])
        raise ConfigurationError(f"no member has the id {node}", hint="lockstep status")

    def await_noticed(self, names: Sequence[str], timeout_s: float = NOTICE_TIMEOUT_S) -> bool:
        """Whether the nodes that run count these as down, which takes them some time."""
        gone = {self.file.node(name).address for name in names}
        asked = [name for name, state in self.states().items() if state is State.RUNNING]

        def noticed() -> bool:
            try:
                found = [self.admin(name, 1.0).get("/v1/nodes").get("nodes", []) for name in asked]
            except LockstepError:
                return False
            return not any(one["address"] in gone and one["alive"] for nodes in found for one in nodes)

        return processes.wait_until(noticed, timeout_s)

    def node_id(self, name: str) -> int:
        """The id that the cluster knows a node by. PeerError when nobody answers, ConfigurationError when the
        node is no member."""
        address = self.file.node(name).address
        for node in self.any_admin().get("/v1/nodes").get("nodes", []):
            if node["address"] == address:
                return int(node["id"])
        raise ConfigurationError(f"{name} at {address} is no member of the cluster", hint="lockstep status")

    def any_admin(self, timeout_s: float = 10.0) -> AdminClient:
        """A client of the first node that runs and takes entries, else of the first that runs: one that has
        stopped applying, or was parked, knows the cluster as it was. PreconditionError when none runs."""
        running = [name for name, state in self.states().items() if state is State.RUNNING]
        for name in running:
            asked = self.admin(name, timeout_s)
            if len(running) == 1 or not _is_broken(asked):
                return asked
        if running:
            return self.admin(running[0], timeout_s)
        raise PreconditionError(f"no node of {self.name} runs", hint=f"lockstep cluster start {self.name}")


class LocalCluster(Known):
    """A cluster of node processes on this machine.

    `command` starts a node when `--config FILE` is appended; tests may put another program there.
    As a context manager it destroys the cluster at the end.
    """

    @classmethod
    def create(
        cls,
        name: str,
        nodes: int = 3,
        *,
        dcs: Sequence[tuple[str, int]] = (),
        settings: Mapping[str, Mapping[str, Any]] | None = None,
        first_address: str = "127.0.0.1",
        ports: tuple[int, int, int] = (9042, 7000, 7080),
        home: Path | None = None,
        command: Sequence[str] = NODE_COMMAND,
    ) -> LocalCluster:
        """Write the directory of a new cluster; nothing is started.

        `dcs` lists (data centre, number of nodes) and replaces `nodes`. `settings` is section -> key ->
        value for every node. `ports` are CQL, internode and admin, the same on each node's own address.
        Raises PreconditionError when the name is taken, ConfigurationError for a wrong setting.
        """
        paths = layout.paths_of(name, home or layout.clusters_home())
        if paths.root.exists():
            raise PreconditionError(
                f"a local cluster {name} exists already in {paths.root}",
                hint=f"lockstep cluster destroy {name}",
            )
        cql_port, internode_port, admin_port = ports
        content = ClusterFile(
            name=name,
            first_address=first_address,
            cql_port=cql_port,
            internode_port=internode_port,
            admin_port=admin_port,
            nodes=layout.planned_nodes(nodes, dcs, first_address),
            settings=_proving(
                {
                    "testing": {"faults": True},
                    **{section: dict(keys) for section, keys in (settings or {}).items()},
                }
            ),
        )
        try:
            for node in content.nodes:
                layout.write_configuration(paths, content, node)
            layout.write(paths, content)
        except LockstepError:
            shutil.rmtree(paths.root, ignore_errors=True)
            raise
        return cls(paths, command)

    @classmethod
    def open(
        cls, name: str, *, home: Path | None = None, command: Sequence[str] = NODE_COMMAND
    ) -> LocalCluster:
        """An existing cluster. PreconditionError when there is none of that name."""
        paths = layout.paths_of(name, home or layout.clusters_home())
        layout.read(paths)
        return cls(paths, command)

    def start(
        self,
        names: Sequence[str] = (),
        timeout_s: float = START_TIMEOUT_S,
        told: Callable[[str], None] = lambda _: None,
    ) -> list[str]:
        """Start the named nodes (all by default) that do not run, and wait until they serve.

        Founders and nodes that ran before start together; new nodes join one after another.
        Returns the names started; `told` gets a line for each that joined. Raises the node's own error when
        one ends, PeerTimeout when one is slow, PreconditionError when memory or ports do not suffice; then
        nothing was started.
        """
        content = self.file
        chosen = [content.node(name) for name in names] if names else list(content.nodes)
        stopped = [node for node in chosen if self.state(node.name) is State.STOPPED]
        together = [node for node in stopped if node.founder or self._ran_before(node)]
        joining = [node for node in stopped if node not in together]
        # Of a whole cluster that was stopped the voters are who they were.
        is_as_before = all(node in stopped and self._ran_before(node) for node in content.nodes)
        _require_memory(len(stopped), processes.available_memory_bytes())
        for node in stopped:
            _require_free_ports(content, node)
        for batch in [together, *([node] for node in joining)]:
            log_begins = self._launch(batch)
            self._wait_ready(content, batch, log_begins, timeout_s)
            if batch is not together:
                told(f"{batch[0].name} joined, {stopped.index(batch[0]) + 1} of {len(stopped)}")
        if stopped and not is_as_before:
            await_voters(self.admin(stopped[-1].name, VOTERS_TIMEOUT_S))
        return [node.name for node in stopped]

    def add(
        self,
        *,
        dc: str = "dc1",
        rack: str = "rack1",
        replaces: str = "",
        tokens: int = -1,
        timeout_s: float = START_TIMEOUT_S,
    ) -> LocalNode:
        """Add one node and start it; returns when it has joined and serves.

        `replaces` is the name or id of a dead node, whose place in the ring, data centre and rack the new
        one takes; it is forgotten then. Its tablets get other replicas behind that, which is awaited for a
        while: the next node may be lost once they have them. `tokens`: how many it owns, 0 for none; -1 for
        as many as the settings say.
        """
        with layout.changing(self.paths):
            content = self.file
            node = msgspec.structs.replace(self.next_node(dc=dc, rack=rack, replaces=replaces), tokens=tokens)
            _require_free_ports(content, node)
            content = msgspec.structs.replace(content, nodes=(*content.nodes, node))
            layout.write_configuration(self.paths, content, node)
            layout.write(self.paths, content)
        dead = self.name_of(replaces) if replaces else ""
        self.start([node.name], timeout_s)
        if dead:
            self.forget(dead)
            await_tablets(self.admin(node.name), node.replaces)
        return node

    def forget(self, name: str) -> None:
        """Drop a stopped node that has left the cluster, with its directory; it is never started again."""
        with layout.changing(self.paths):
            content = self.file
            node = content.node(name)
            if self.state(name) is not State.STOPPED:
                raise PreconditionError(f"{name} runs", hint=f"lockstep cluster stop {self.name} {name}")
            others = tuple(other for other in content.nodes if other is not node)
            layout.write(self.paths, msgspec.structs.replace(content, nodes=others))
            shutil.rmtree(self.paths.node(name))

    def kill(self, *names: str) -> None:
        """SIGKILL: the node loses everything that is not on disk. Returns when the processes are gone."""
        self._signal(names, signal.SIGKILL)
        for name in names:
            self._wait_state(name, State.STOPPED)

    def pause(self, *names: str) -> None:
        """SIGSTOP: the node keeps its connections and answers nothing."""
        self._signal(names, signal.SIGSTOP)
        for name in names:
            self._wait_state(name, State.PAUSED)

    def resume(self, *names: str) -> None:
        """Let paused nodes run on."""
        self._signal(names, signal.SIGCONT)
        for name in names:
            self._wait_state(name, State.RUNNING)

    def partition(self, one: Sequence[str], other: Sequence[str]) -> None:
        """Cut all connections between two sides, in both directions.

        Each named node is told the complete list of peers it is cut off from, as `host:port` of their
        internode doors; an earlier partition of the same node is replaced.
        """
        content = self.file
        for side, opposite in ((one, other), (other, one)):
            peers = [f"{content.node(name).address}:{content.internode_port}" for name in opposite]
            for name in side:
                self.admin(name).post("/v1/testing/partition", {"peers": peers})

    def heal(self) -> None:
        """End every partition: all running nodes may talk to each other again."""
        for name, state in self.states().items():
            if state is State.RUNNING:
                self.admin(name).post("/v1/testing/partition", {"peers": []})

    def stop(self, names: Sequence[str] = (), timeout_s: float = STOP_TIMEOUT_S) -> list[str]:
        """SIGTERM and a bounded wait, then SIGKILL; returns the names that had to be killed."""
        content = self.file
        chosen = [content.node(name).name for name in names] if names else [n.name for n in content.nodes]
        identities = {name: processes.recorded(self.paths.pid(name)) for name in chosen}
        for identity in identities.values():
            if processes.send(identity, signal.SIGTERM):
                # A paused process only sees the signal when it goes on.
                processes.send(identity, signal.SIGCONT)
        processes.wait_until(
            lambda: all(processes.look(one) is State.STOPPED for one in identities.values()), timeout_s
        )
        late = [name for name in chosen if self.state(name) is not State.STOPPED]
        if late:
            self.kill(*late)
        return late

    def destroy(self) -> None:
        """Kill all nodes and delete the directory with all data."""
        identities = [processes.recorded(self.paths.pid(node.name)) for node in self.file.nodes]
        for identity in identities:
            processes.send(identity, signal.SIGKILL)
        gone = processes.wait_until(
            lambda: all(processes.look(one) is State.STOPPED for one in identities), STOP_TIMEOUT_S
        )
        if not gone:
            raise PeerTimeout(f"nodes of {self.name} did not end; their directory {self.paths.root} is kept")
        shutil.rmtree(self.paths.root)

    def __enter__(self) -> LocalCluster:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.destroy()

    def _ran_before(self, node: LocalNode) -> bool:
        data = self.paths.data(node.name)
        return data.is_dir() and any(data.iterdir())

    def _launch(self, batch: Sequence[LocalNode]) -> dict[str, int]:
        """Start the processes; returns where in the log of each its output begins."""
        logs = {node.name: self.paths.log(node.name) for node in batch}
        begins = {name: log.stat().st_size if log.exists() else 0 for name, log in logs.items()}
        environment = node_environment(os.environ)
        commands = {
            node.name: [*self._command, "--config", str(self.paths.configuration(node.name))]
            for node in batch
        }
        if nursery.IS_USABLE and len(batch) > 1 and self._command == NODE_COMMAND:
            children = [nursery.Child(commands[name], str(log)) for name, log in logs.items()]
            for name, pid in zip(logs, nursery.start(children, environment), strict=True):
                processes.record(pid, self.paths.pid(name))
            return begins
        for name, log in logs.items():
            processes.spawn(commands[name], log=log, pid_file=self.paths.pid(name), environment=environment)
        return begins

    def _wait_ready(
        self,
        content: ClusterFile,
        batch: Sequence[LocalNode],
        log_begins: Mapping[str, int],
        timeout_s: float,
    ) -> None:
        """Until every CQL port is open, which is the last thing a starting node does.

        Ends at once when one process has ended, as the others may be waiting for it, or when one says why it
        does not serve.
        """
        waiting = list(batch)
        ended: list[LocalNode] = []

        def gave_up(node: LocalNode) -> bool:
            if self.state(node.name) is State.STOPPED:
                return True
            # Only then a node runs on, without serving, for its operators.
            said = _reported(self.paths.log(node.name), log_begins[node.name])
            return isinstance(said, CannotApply)

        def settled() -> bool:
            ended[:] = [node for node in batch if gave_up(node)]
            waiting[:] = [node for node in waiting if not _accepts(node.address, content.cql_port)]
            return bool(ended) or not waiting

        await_moving(settled, timeout_s, lambda: self.any_admin(1.0))
        for node in ended:
            raise _start_failure(node.name, self.paths.log(node.name), log_begins[node.name])
        if waiting:
            names = ", ".join(node.name for node in waiting)
            raise PeerTimeout(
                f"{names} started but does not serve, and nothing has moved for {timeout_s:g} s",
                hint=f"lockstep status shows what a join waits for; tail {self.paths.log(waiting[0].name)}",
            )

    def _signal(self, names: Sequence[str], number: signal.Signals) -> None:
        content = self.file
        for name in names:
            content.node(name)
            if not processes.send(processes.recorded(self.paths.pid(name)), number):
                raise PreconditionError(
                    f"{name} does not run", hint=f"lockstep cluster start {self.name} {name}"
                )

    def _wait_state(self, name: str, wanted: State) -> None:
        if not processes.wait_until(lambda: self.state(name) is wanted, STOP_TIMEOUT_S):
            raise PeerTimeout(f"{name} is {self.state(name).value}, not yet {wanted.value}")


def _proving(settings: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The settings, with a new join secret where clients log in and nothing else keeps strange nodes out."""
    cluster = settings.get("cluster", {})
    logs_in = settings.get("auth", {}).get("authenticator") in PASSWORD_AUTHENTICATORS
    if not logs_in or settings.get("tls", {}).get("internode_certificate"):
        return settings
    if cluster.get("join_secret") or cluster.get("join_secret_file"):
        return settings
    return {**settings, "cluster": {**cluster, "join_secret": secrets.token_hex(JOIN_SECRET_BYTES)}}


def list_clusters(home: Path | None = None) -> list[LocalCluster]:
    """All local clusters of this user, by name."""
    base = home or layout.clusters_home()
    found = sorted(base.iterdir()) if base.is_dir() else []
    return [LocalCluster(Paths(path)) for path in found if Paths(path).cluster_file.is_file()]


def _require_memory(nodes: int, available_bytes: int) -> None:
    """PreconditionError when so many nodes do not fit."""
    fitting = available_bytes // NODE_MEMORY_BYTES
    if nodes > fitting:
        raise PreconditionError(
            f"{nodes} nodes take about {nodes * NODE_MEMORY_BYTES >> 20} MiB of memory and "
            f"{available_bytes >> 20} MiB are free",
            hint=f"{fitting} nodes fit" if fitting else "end something else first",
        )


def _require_free_ports(content: ClusterFile, node: LocalNode) -> None:
    """PreconditionError when another process listens where this node wants to."""
    for port in (content.internode_port, content.cql_port, content.admin_port):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((node.address, port))
            except OSError as error:
                raise PreconditionError(
                    f"{node.name} cannot listen on {node.address}:{port}: {error.strerror}",
                    hint="lockstep cluster list shows what runs; --first-address 127.0.1.1 avoids it",
                ) from error


def _accepts(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), timeout=_CONNECT_TIMEOUT_S).close()
    except OSError:
        return False
    return True


def _log_lines(log: Path, begin: int) -> list[str]:
    with log.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(begin, size - LOG_TAIL_BYTES))
        return file.read().decode(errors="replace").splitlines()


def _reported(log: Path, begin: int) -> LockstepError | None:
    """The last error that the node printed, also while it runs on for its operators."""
    lines = _log_lines(log, begin)
    for index in range(len(lines) - 1, -1, -1):
        if lines[index].startswith("error["):
            code, _, sentence = lines[index].removeprefix("error[").partition("]: ")
            rest = lines[index + 1 :]
            hint = next((line.removeprefix("hint: ") for line in rest if line.startswith("hint: ")), "")
            return revived(class_by_code(code) or LockstepError, sentence, hint)
    return None


def _start_failure(name: str, log: Path, begin: int) -> LockstepError:
    """The error that the node printed, or the end of its log."""
    found = _reported(log, begin)
    if found is not None:
        return revived(type(found), f"{name} did not start: {found.message}", found.hint)
    tail = "".join(f"\n  {line}" for line in _log_lines(log, begin)[-5:])
    return LockstepError(f"{name} ended before it served{tail}", hint=f"tail {log}")


#: Where nodes keep their data that were told nothing else, below the directory they were started in.
DATA_HOME: Final = Path("lockstep-data")


def found_for(host: str, port: int, ca_file: str = "") -> Credential:
    """The token of the local cluster's node at this address and admin port, or of a node whose data lies in
    `./lockstep-data`; no token when there is neither."""
    addresses = addresses_of(host)
    for cluster in list_clusters():
        try:
            content = cluster.file
        except (LockstepError, ValueError, KeyError):
            continue  # Being made or destroyed at this moment.
        for node in content.nodes:
            if content.admin_port == port and node.address in addresses:
                found = cluster.credential(node.name)
                return Credential(found.authorization, ca_file or found.ca_file)
    names = sorted({*addresses, host})
    near = [path for name in names for path in sorted(DATA_HOME.glob(f"{name}*/{admin_client.TOKEN_FILE}"))]
    return admin_client.of_node(near[0].parent, ca_file) if len(near) == 1 else Credential("", ca_file)


def local_addresses(name: str, admin_ports: Set[int]) -> set[str]:
    """Addresses of nodes of this name in local clusters whose admin port is one of these."""
    found = set()
    for cluster in list_clusters():
        try:
            content = cluster.file
        except (LockstepError, ValueError, KeyError):
            continue  # Being made or destroyed at this moment.
        if content.admin_port in admin_ports:
            found |= {node.address for node in content.nodes if node.name == name}
    return found


def addresses_of(host: str) -> set[str]:
    """What a name stands for."""
    try:
        return {str(found[4][0]) for found in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)}
    except OSError:
        return {host}


def _is_broken(asked: AdminClient) -> bool:
    try:
        return asked.get("/v1/status").get("broken") is not None
    except LockstepError:
        return True
