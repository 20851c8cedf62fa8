"""One node of a test's cluster, and what a test does to it.

Invariant: a call returns when what it says has happened to the process; what other nodes think of it they
notice later, which `wait_until_seen_down` and `wait_until_seen_up` wait for.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from lockstep.local.layout import LocalNode
from lockstep.local.processes import State

if TYPE_CHECKING:
    from lockstep.testing.clusters import Cluster
    from lockstep.testing.session import Session


class Node:
    """`name` is n1, n2, ...; `address` and `port` are what drivers see."""

    def __init__(self, cluster: Cluster, node: LocalNode) -> None:
        self._cluster = cluster
        self._local = cluster.local
        self.name = node.name
        self.address = node.address
        self.port = cluster.port
        self.dc = node.dc
        self.rack = node.rack

    def __repr__(self) -> str:
        return f"<Node {self.name} at {self.address}, {self.state.value}>"

    @property
    def state(self) -> State:
        """RUNNING, PAUSED or STOPPED."""
        return self._local.state(self.name)

    @property
    def running(self) -> bool:
        return self.state is State.RUNNING

    @property
    def log_path(self) -> Path:
        return self._local.paths.log(self.name)

    def log_tail(self, lines: int = 30) -> list[str]:
        """The last lines that the node logged."""
        if not self.log_path.exists():
            return []
        return self.log_path.read_text(errors="replace").splitlines()[-lines:]

    def kill(self) -> None:
        """SIGKILL, as a crash; clients' connections break at once."""
        self._cluster.disturbed(self.name, stopped=True)
        self._local.kill(self.name)

    def stop(self) -> None:
        """SIGTERM: it finishes requests in flight and ends in good order."""
        self._cluster.disturbed(self.name, stopped=True)
        self._local.stop([self.name])

    def start(self) -> None:
        """Start it after `kill` or `stop`; returns when it serves clients."""
        self._local.start([self.name])
        self._cluster.restored(self.name)

    def restart(self) -> None:
        """Stop it in good order, and start it."""
        self.stop()
        self.start()

    def pause(self) -> None:
        """SIGSTOP: it keeps its connections and answers nothing, as in a long pause of a machine."""
        self._cluster.disturbed(self.name)
        self._local.pause(self.name)

    def resume(self) -> None:
        self._local.resume(self.name)

    def isolate(self) -> None:
        """Cut it off from all other nodes; clients still reach it."""
        self._cluster.partition([self], [node for node in self._cluster.nodes if node.name != self.name])

    def decommission(self, timeout_s: float = 60.0) -> None:
        """Let it give its data to others and leave; its process ends, and it is no longer among the nodes."""
        self._cluster.operate("decommission", self, timeout_s)
        self._local.stop([self.name])
        self._local.forget(self.name)

    def wait_until_seen_down(self, timeout_s: float = 15.0) -> None:
        """Until all other running nodes have noticed that it does not answer: from then on requests that
        need it are refused (Unavailable) instead of timing out."""
        self._cluster.wait_until_seen(self, alive=False, timeout_s=timeout_s)

    def wait_until_seen_up(self, timeout_s: float = 15.0) -> None:
        """Until all other running nodes count on it."""
        self._cluster.wait_until_seen(self, alive=True, timeout_s=timeout_s)

    def session(self, **settings: Any) -> Session:
        """A session of the kit that has this node coordinate."""
        return self._cluster.session(node=self, **settings)
