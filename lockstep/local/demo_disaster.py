"""Owns `lockstep demo --act disaster`: five nodes lose the majority of both groups with their disks, and the
rest is made a cluster again by the plan that it prints.

Invariant: every process that it started has ended when it returns or raises; it succeeds only when every
check held.
"""

from __future__ import annotations

import contextlib
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TextIO

import msgspec

from lockstep.documents import read
from lockstep.documents.recovery import ClusterReset, ClusterState
from lockstep.documents.service import GlobalState
from lockstep.local.clusters import LocalCluster
from lockstep.local.demo import Check, all_held, show_checks, termination_as_interrupt
from lockstep.spark.cql_client import CqlConnection, Endpoint
from lockstep.values.errors import LockstepError, PeerTimeout, PreconditionError
from lockstep.values.ids import Consistency

NAME: Final = "disaster"
NODES: Final = 5
ROWS: Final = 300
PORTS: Final = (9042, 7000, 7080)
_LIMIT_S: Final = 60.0
_POLL_S: Final = 0.1
_RESET: Final = "/management/v1/recovery/cluster/reset"
_STATE: Final = "/management/v1/cluster/state"


class DisasterOptions(msgspec.Struct, frozen=True):
    first_address: str = "127.0.0.1"
    ports: tuple[int, int, int] = PORTS
    home: Path | None = None
    keep: bool = False


def run(options: DisasterOptions, out: TextIO = sys.stdout) -> int:
    """Play it and print the verdict; 0 when every check held. PreconditionError when a port or the cluster's
    name is taken."""
    began_s = time.monotonic()
    local = LocalCluster.create(
        NAME, NODES, first_address=options.first_address, ports=options.ports, home=options.home
    )
    kept = False
    with termination_as_interrupt():
        try:
            act = DisasterAct(local, out)
            act.play()
            kept = options.keep
        finally:
            if not kept:
                local.destroy()
    print(file=out)
    show_checks(act.checks, time.monotonic() - began_s, out)
    if kept:
        print(f"the cluster runs on: lockstep recovery --host {local.contact_points[-1]}", file=out)
    return 0 if all_held(act.checks) else 1


class DisasterAct:
    def __init__(self, local: LocalCluster, out: TextIO) -> None:
        self._local = local
        self._out = out
        self._admin_port = local.file.admin_port
        self.checks: list[Check] = []

    def play(self) -> None:
        local = self._local
        self._say(f"starting {NODES} nodes")
        local.start()
        self._load()
        state = self._settled_state()
        lost = [f"n{voter}" for voter in state.voters[: len(state.voters) // 2 + 1]]
        left = next(name for name in reversed([f"n{one}" for one in range(1, NODES + 1)]) if name not in lost)
        self._say(
            f"nodes {_listed(state.voters)} vote; {' and '.join(lost)} are killed, and their disks are gone"
        )
        local.kill(*lost)
        for name in lost:
            shutil.rmtree(local.paths.data(name))
        self._until(lambda: self._group(left).state == "Unavailable", "the loss to be noticed")
        self._say("nobody can change schema or topology any more, and no node can join:")
        self._say(f"  lockstep recovery cluster reset --host {self._host(left)} --dry-run")
        plan = self._planned(left)
        self._show(plan)
        self._say(f"  lockstep recovery cluster reset --host {self._host(left)} --yes")
        began_s = time.monotonic()
        self._post(left, {"digest": plan.digest})
        self._until(lambda: self._accepts(left), "a schema change to be accepted")
        took_s = time.monotonic() - began_s
        self._judge(left, state, plan, took_s, lost)

    def _judge(
        self, left: str, before: ClusterState, plan: ClusterReset, took_s: float, lost: list[str]
    ) -> None:
        after = read(ClusterState, self._local.admin(left).get(_STATE))
        self._say(f"first schema change accepted {took_s:.1f} s after the command")
        found = self._count(left)
        lineage = [one.cluster_id for one in after.lineage]
        self.checks = [
            Check("the majority of both groups lost, with its disks", ", ".join(lost), bool(lost)),
            Check(
                "carried out as it was planned",
                f"voters {_listed(after.voters)}",
                after.voters == plan.voters,
            ),
            Check("rows of a quorum that are still there", f"{found} of {ROWS}", found == ROWS),
            Check(
                "the cluster goes on under another id",
                f"{before.cluster_id[:8]} then {after.cluster_id[:8]}",
                lineage == [before.cluster_id, after.cluster_id],
            ),
            Check("seconds from the command to the first schema change", f"{took_s:.1f}"),
            Check("what may be lost", plan.lost or "nothing"),
        ]
        for one in plan.absent:
            self._say(f"node {one.node} is given up with: lockstep topology remove {one.node} --force")

    # -- the cluster

    def _load(self) -> None:
        replication = f"{{'class': 'NetworkTopologyStrategy', 'replication_factor': {NODES}}}"
        with contextlib.closing(self._session("n1")) as session:
            session.query(f"CREATE KEYSPACE disaster WITH replication = {replication}")
            session.query("CREATE TABLE disaster.rows (id int PRIMARY KEY, v text)")
            for number in range(ROWS):
                text = f"INSERT INTO disaster.rows (id, v) VALUES ({number}, 'row {number}')"
                session.query(text, (), Consistency.QUORUM)
        self._say(f"{ROWS} rows written at QUORUM, each to {NODES} replicas")

    def _session(self, name: str) -> CqlConnection:
        content = self._local.file
        return CqlConnection.open(Endpoint(content.node(name).address, content.cql_port), 10.0)

    def _settled_state(self) -> ClusterState:
        """Once three nodes vote."""
        found: list[ClusterState] = []

        def settled() -> bool:
            found.append(read(ClusterState, self._local.admin("n1").get(_STATE)))
            return len(found[-1].voters) == len(found[-1].management) == 3

        self._until(settled, "three nodes to vote")
        return found[-1]

    def _group(self, name: str) -> GlobalState:
        path = "/management/v1/recovery/metastorage/state/global"
        return read(GlobalState, self._local.admin(name).get(path))

    def _accepts(self, name: str) -> bool:
        with contextlib.closing(self._session(name)) as session:
            session.query("CREATE TABLE IF NOT EXISTS disaster.after (id int PRIMARY KEY)")
        return True

    def _planned(self, name: str) -> ClusterReset:
        """Once all that are left have noticed that nobody leads."""
        found: list[ClusterReset] = []

        def plan() -> bool:
            found.append(read(ClusterReset, self._post(name, {"dryRun": True})))
            return True

        self._until(plan, "a plan")
        return found[-1]

    def _count(self, name: str) -> int:
        counted: list[int] = []

        def count() -> bool:
            with contextlib.closing(self._session(name)) as session:
                (row,) = session.query("SELECT count(*) FROM disaster.rows", (), Consistency.QUORUM)
            counted.append(int(str(next(iter(row.values())))))
            return True

        self._until(count, "the rows to be read")
        return counted[-1]

    def _post(self, name: str, wanted: dict[str, Any]) -> dict[str, Any]:
        answer: dict[str, Any] = self._local.admin(name, _LIMIT_S).post(_RESET, wanted)
        return answer

    def _host(self, name: str) -> str:
        address = self._local.file.node(name).address
        return address if self._admin_port == PORTS[2] else f"{address}:{self._admin_port}"

    def _until(self, done: Callable[[], bool], what: str) -> None:
        """Ask again while it is not so, or nobody answers. PeerTimeout when that takes too long."""
        deadline_s = time.monotonic() + _LIMIT_S
        last = "it is not so yet"
        while time.monotonic() < deadline_s:
            try:
                if done():
                    return
            except LockstepError as error:
                last = error.message
            time.sleep(_POLL_S)
        raise PeerTimeout(f"waited {_LIMIT_S:g} s for {what}: {last}")

    # -- what is told

    def _say(self, text: str) -> None:
        print(text, file=self._out, flush=True)

    def _show(self, plan: ClusterReset) -> None:
        if plan.cluster_id == plan.former_id:
            raise PreconditionError("the plan of a repair gives the cluster another id")
        for one in plan.participants:
            roles = [word for word, holds in (("votes", one.voter), ("manages", one.manager)) if holds]
            if one.source:
                roles.insert(0, "its log goes on")
            self._say(
                f"    node {one.node}: log to epoch {one.log_epoch} in term {one.log_term}"
                + (f"; {', '.join(roles)}" if roles else "")
            )
        for gone in plan.absent:
            self._say(f"    node {gone.node} is absent: {gone.reason}")
        self._say(f"    may be lost: {plan.lost or 'nothing'}")


def _listed(nodes: tuple[int, ...]) -> str:
    return ", ".join(map(str, nodes))
