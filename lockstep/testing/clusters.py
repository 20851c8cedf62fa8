"""A real cluster for a test: node processes on loopback addresses that no other cluster of this machine uses,
gone when the test's process is.

Owns: a cluster's directory, addresses and watchdog.

Owns: how the kit calls `cassandra.cluster`, the one module name that cassandra-driver and scylla-driver
share.

Owns: which block of 127.0.0.0/8 belongs to which test process.

Invariant: from before the first node starts until the last one has ended, the watchdog knows the directory;
what a test did to nodes is remembered, so that `mend` can undo it and reports tell it from what went wrong.
Nothing here is imported before a test connects, and the kit runs without either. A block is held by an
exclusive lock on a file, which the system drops with the last process that holds it: no crash leaves a block
taken.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import itertools
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final

from lockstep.local import processes
from lockstep.local.admin_client import AdminClient
from lockstep.local.clusters import LocalCluster
from lockstep.local.processes import State
from lockstep.testing import watchdog
from lockstep.testing.conversation import Values
from lockstep.testing.nodes import Node, Session
from lockstep.values.errors import (
    ConfigurationError,
    LockstepError,
    NodeRestarting,
    PeerError,
    PeerTimeout,
    PeerUnreachable,
    PreconditionError,
)
from lockstep.values.ids import Consistency

#: Second octets of the blocks: away from 127.0.x.x, which people and other tools use.
_FIRST_OCTET: Final = 64
_OCTETS: Final = 32
_BLOCKS: Final = _OCTETS * 256
#: Blocks that are tried: more are only ever taken when something else is wrong.
_TRIED_MAX: Final = 512


class Block:
    """Addresses x.y.z.1 to x.y.z.254, ours until `release`. `descriptor` holds the lock."""

    def __init__(self, prefix: str, descriptor: int) -> None:
        self.prefix = prefix
        self.first_address = f"{prefix}.1"
        self.descriptor = descriptor
        self._held = True

    def release(self) -> None:
        if self._held:
            self._held = False
            os.close(self.descriptor)


def claim(ports: Sequence[int]) -> Block:
    """A block on whose first address all `ports` are free. PreconditionError when none is found."""
    locks = Path(tempfile.gettempdir()) / f"lockstep-addresses-{os.getuid()}"
    locks.mkdir(mode=0o700, exist_ok=True)
    begin = os.getpid() * 61 % _BLOCKS
    for step in range(_TRIED_MAX):
        number = (begin + step) % _BLOCKS
        block = _locked(locks, f"127.{_FIRST_OCTET + number // 256}.{number % 256}")
        if block is None:
            continue
        if all(_free(block.first_address, port) for port in ports):
            return block
        block.release()
    raise PreconditionError(
        f"{_TRIED_MAX} blocks of loopback addresses are in use", hint="lockstep cluster list"
    )


def _locked(locks: Path, prefix: str) -> Block | None:
    descriptor = os.open(locks / prefix, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    with contextlib.suppress(BlockingIOError):
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return Block(prefix, descriptor)
    os.close(descriptor)
    return None


def _free(address: str, port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with contextlib.suppress(OSError):
            probe.bind((address, port))
            return True
    return False


_PROTOCOL_VERSION = 5


def connect(
    contact_points: Sequence[str],
    port: int,
    keyspace: str | None = None,
    *,
    user: str = "",
    password: str = "",
    **settings: Any,
) -> Any:
    """A connected session. ConfigurationError when there is no driver.

    Unless `settings` say otherwise: requests go to all nodes in turn at QUORUM, and lost nodes are tried
    again within a second, as tests bring them back and do not want to wait.
    """
    try:
        from cassandra import ConsistencyLevel, ProtocolVersion
        from cassandra.auth import PlainTextAuthProvider
        from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile
        from cassandra.policies import ConstantReconnectionPolicy, RoundRobinPolicy, TokenAwarePolicy
    except ImportError as error:
        raise ConfigurationError(
            "no driver is installed", hint="pip install cassandra-driver, or use cluster.execute"
        ) from error
    if "execution_profiles" not in settings and "load_balancing_policy" not in settings:
        profile = ExecutionProfile(
            load_balancing_policy=TokenAwarePolicy(RoundRobinPolicy()),
            consistency_level=ConsistencyLevel.QUORUM,
        )
        settings["execution_profiles"] = {EXEC_PROFILE_DEFAULT: profile}
    # The newest that nodes speak: a driver finds out by being refused, and logs each time.
    spoken = [version for version in ProtocolVersion.SUPPORTED_VERSIONS if version <= _PROTOCOL_VERSION]
    settings.setdefault("protocol_version", max(spoken))
    settings.setdefault("reconnection_policy", ConstantReconnectionPolicy(0.5, max_attempts=None))
    if user and "auth_provider" not in settings:
        settings["auth_provider"] = PlainTextAuthProvider(user, password)
    cluster = Cluster(list(contact_points), port=port, **settings)
    try:
        return cluster.connect(keyspace)
    except BaseException:
        cluster.shutdown()
        raise


#: CQL, internode and admin port, the same on every node's own address.
PORTS: Final = (9042, 7000, 7080)
#: Who may do everything in a cluster with `auth=True`.
USER: Final = "cassandra"
PASSWORD: Final = "cassandra"
_AUTH: Final = {"authenticator": "password", "authorizer": "role-based"}
#: What a test waits for is a matter of milliseconds; on a busy machine it may take this long.
_SETTLE_S: Final = 30.0
#: How long a node that runs may take no clients: it begins another life in about a second.
_RESTART_WAIT_S: Final = 10.0
#: Between two attempts at that.
_POLL_S: Final = 0.05
_ENDED: Final = ("done", "failed", "cancelled")


class Cluster:
    """Use as a context manager, `with` or `async with`; or call `start` and `close`.

    `dcs` maps data centres to numbers of nodes and replaces `nodes`. `settings` is section -> key -> value,
    as in lockstep.toml, for every node. `directory` is kept at the end; without one, everything lies in a
    temporary directory that is deleted, unless `keep`. Every call blocks; in async code use
    `asyncio.to_thread`.
    """

    def __init__(
        self,
        nodes: int = 3,
        *,
        dcs: Mapping[str, int] | None = None,
        auth: bool = False,
        settings: Mapping[str, Mapping[str, Any]] | None = None,
        name: str = "test",
        directory: str | os.PathLike[str] | None = None,
        keep: bool = False,
    ) -> None:
        self.auth = auth
        self.keep = keep or directory is not None
        self._block = claim(PORTS)
        home = Path(directory) if directory else Path(tempfile.mkdtemp(prefix="lockstep-test-"))
        self.directory = home.absolute()
        chosen = {section: dict(keys) for section, keys in (settings or {}).items()}
        if auth:
            chosen["auth"] = {**_AUTH, **chosen.get("auth", {})}
        try:
            self.local = LocalCluster.create(
                name,
                nodes,
                dcs=tuple((dcs or {}).items()),
                settings=chosen,
                first_address=self._block.first_address,
                ports=PORTS,
                home=self.directory,
            )
        except BaseException:
            self._block.release()
            if not self.keep:
                shutil.rmtree(self.directory, ignore_errors=True)
            raise
        self._watchdog: subprocess.Popen[bytes] | None = None
        self._sessions: dict[str, Session] = {}
        self._numbers = itertools.count(1)
        #: Nodes that do not run because a test wanted it.
        self._stopped_on_purpose: dict[str, None] = {}
        self._disturbed = False

    # ---- life

    def start(self) -> Cluster:
        """Start all nodes; returns when they serve clients. A LockstepError says why one does not."""
        if self._watchdog is None:
            self._watchdog = watchdog.guard(self.directory, self.keep, self._block.descriptor)
        self.local.start()
        return self

    def close(self) -> None:
        """Kill all nodes and delete what they stored. May be called twice."""
        for session in self._sessions.values():
            session.close()
        self._sessions.clear()
        if self.local.paths.root.exists():
            self.local.stop(timeout_s=0) if self.keep else self.local.destroy()
        if not self.keep:
            shutil.rmtree(self.directory, ignore_errors=True)
        if self._watchdog is not None:
            assert self._watchdog.stdin is not None
            self._watchdog.stdin.close()
            self._watchdog.wait()
            self._watchdog = None
        self._block.release()

    def __enter__(self) -> Cluster:
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Cluster:
        return await asyncio.to_thread(self.__enter__)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.close)

    # ---- what there is

    @property
    def nodes(self) -> list[Node]:
        """Nodes that belong to the cluster, whether they run or not."""
        return [Node(self, node) for node in self.local.file.nodes]

    def node(self, name: str) -> Node:
        """The node called so. ConfigurationError when there is none."""
        return Node(self, self.local.file.node(name))

    @property
    def contact_points(self) -> list[str]:
        """Addresses for a driver; all nodes share `port`."""
        return self.local.contact_points

    @property
    def port(self) -> int:
        return PORTS[0]

    @property
    def replication(self) -> str:
        """CQL of a replication of up to three copies in every data centre."""
        counts: dict[str, int] = {}
        for node in self.nodes:
            counts[node.dc] = min(counts.get(node.dc, 0) + 1, 3)
        factors = ", ".join(f"'{dc}': {count}" for dc, count in counts.items())
        return f"{{'class': 'NetworkTopologyStrategy', {factors}}}"

    def admin(self) -> AdminClient:
        """The HTTP API of a running node, as `lockstep status` and the others use it."""
        return self.local.any_admin()

    # ---- clients

    def connect(self, keyspace: str | None = None, **settings: Any) -> Any:
        """A session of cassandra-driver (or scylla-driver), whose package must be installed; `settings` go
        to its `Cluster`. Closing the session is the caller's: `session.cluster.shutdown()`."""
        if self.auth:
            settings = {"user": USER, "password": PASSWORD, **settings}
        return connect(self.contact_points, self.port, keyspace, **settings)

    def session(
        self, node: Node | None = None, *, restart_wait_s: float = _RESTART_WAIT_S, **settings: Any
    ) -> Session:
        """A session of the kit's own, at one node (the first that runs).

        A node that restarts in its process, as a repair of lost groups makes it, takes no clients for a
        moment: that is waited for. NodeRestarting when it takes longer; PeerUnreachable of one that is dead.
        """
        if self.auth:
            settings = {"user": USER, "password": PASSWORD, **settings}
        chosen = node or self._running()[0]
        deadline_s = time.monotonic() + restart_wait_s
        while True:
            try:
                return Session(chosen.address, self.port, **settings)
            except PeerUnreachable as error:
                if not chosen.running:
                    raise
                if time.monotonic() >= deadline_s:
                    raise NodeRestarting(
                        f"{chosen.name} runs, and has taken no clients for {restart_wait_s:g} s",
                        hint=f"see what it does: lockstep status --host {chosen.address}",
                    ) from error
                time.sleep(_POLL_S)

    def execute(
        self, text: str, values: Values = (), *, consistency: str | Consistency = "QUORUM"
    ) -> list[Any]:
        """Run a statement at the first node that runs, without a driver; rows are named tuples."""
        node = self._running()[0]
        session = self._sessions.get(node.name)
        if session is not None and session.broken:
            session.close()
            session = None
        if session is None:
            session = self._sessions[node.name] = self.session(node)
        return session.execute(text, values, consistency=consistency)

    def create_keyspace(self, name: str = "") -> str:
        """A new keyspace with up to three copies of everything; its name."""
        chosen = name or f"test_{next(self._numbers)}"
        self.execute(f"CREATE KEYSPACE {chosen} WITH replication = {self.replication}")
        return chosen

    # ---- what may happen to it

    def add(self, *, dc: str = "", rack: str = "rack1", replaces: Node | None = None) -> Node:
        """A new node; returns when it has joined and serves. `replaces`: a dead node whose place it takes."""
        if replaces is not None:
            replaces.wait_until_seen_down()
        joined = self.local.add(
            dc=dc or self.nodes[0].dc, rack=rack, replaces=replaces.name if replaces else ""
        )
        if replaces is not None:
            self.restored(replaces.name)
        return Node(self, joined)

    def partition(self, one: Sequence[Node], other: Sequence[Node]) -> None:
        """Cut all connections between nodes of the two sides, in both directions; clients reach all of
        them."""
        self._disturbed = True
        self.local.partition([node.name for node in one], [node.name for node in other])

    def heal(self) -> None:
        """End every partition."""
        self.local.heal()

    def mend(self) -> None:
        """Undo what was done to nodes: resume, heal, start; returns when all of them count on each other. It
        does nothing when nothing was done."""
        if not self._disturbed and all(node.running for node in self.nodes):
            return
        for node in self.nodes:
            if node.state is State.PAUSED:
                node.resume()
        self.local.start()
        self._stopped_on_purpose.clear()
        self.local.heal()
        self.settle()
        self._disturbed = False

    def settle(self, timeout_s: float = _SETTLE_S) -> None:
        """Until every running node knows which nodes run and which do not. Not for partitions."""
        for node in self.nodes:
            self.wait_until_seen(node, alive=node.running, timeout_s=timeout_s)

    def wait_until_seen(self, node: Node, *, alive: bool, timeout_s: float) -> None:
        """Until all other running nodes say that `node` is alive, or that it is not. PeerTimeout after that
        time."""
        others = [other for other in self._running() if other.name != node.name]
        late = list(others)

        def seen() -> bool:
            late[:] = [other for other in late if self._sees(other, node) is not alive]
            return not late

        if not processes.wait_until(seen, timeout_s):
            names = ", ".join(other.name for other in late)
            raise PeerTimeout(
                f"{names} did not see {node.name} {'up' if alive else 'down'} in {timeout_s:g} s"
            )

    def operate(self, kind: str, node: Node, timeout_s: float) -> None:
        """Ask for a topology operation about a node, and wait for its end."""
        admin = next(
            (self.local.admin(other.name) for other in self._running() if other.name != node.name), None
        )
        if admin is None:
            raise PreconditionError(f"no node but {node.name} runs")
        request = admin.post(
            "/v1/requests", {"kind": kind, "node": self.local.node_id(node.name), "dry_run": False}
        )

        def ended() -> bool:
            request.update(admin.get(f"/v1/requests/{request['id']}"))
            return request.get("state") in _ENDED

        if not processes.wait_until(ended, timeout_s):
            raise PeerTimeout(f"the {kind} of {node.name} still runs after {timeout_s:g} s")
        if request["state"] != "done":
            raise LockstepError(f"the {kind} of {node.name} {request['state']}: {request.get('error')}")

    # ---- what a test did

    def disturbed(self, name: str, *, stopped: bool = False) -> None:
        """Remember that a test is about to break a node."""
        self._disturbed = True
        if stopped:
            self._stopped_on_purpose[name] = None

    def restored(self, name: str) -> None:
        """Remember that a node runs again, or is gone for good."""
        self._stopped_on_purpose.pop(name, None)

    def ended_by_themselves(self) -> list[Node]:
        """Nodes that do not run although nobody stopped them."""
        return [
            node
            for node in self.nodes
            if node.state is State.STOPPED and node.name not in self._stopped_on_purpose
        ]

    # ---- parts

    def _running(self) -> list[Node]:
        running = [node for node in self.nodes if node.running]
        if not running:
            raise PreconditionError("no node of the cluster runs", hint="cluster.mend() starts them")
        return running

    def _sees(self, observer: Node, node: Node) -> bool | None:
        """Whether `observer` says that `node` is alive and in service; None when it says nothing."""
        try:
            known = self.local.admin(observer.name).get("/v1/status").get("nodes", [])
        except PeerError:
            return None
        found = [one for one in known if one.get("address") == node.address and one.get("state") != "left"]
        return bool(found) and bool(found[-1].get("alive")) and found[-1].get("state") == "normal"
