"""Owns what the demo shows while it runs: its phases, the traffic's latest numbers, the cluster's state.

Invariant: only values; screens read them, the tour writes them.
"""

from __future__ import annotations

import enum
from typing import Any

import msgspec

from lockstep.local.demo_messages import Report


class PhaseState(enum.Enum):
    WAITING = "waiting"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    SKIPPED = "skipped"


class Phase(msgspec.Struct):
    """`told` says what is going on, and after the end what came of it."""

    key: str
    title: str
    state: PhaseState = PhaseState.WAITING
    told: str = ""
    begin_s: float = 0.0
    end_s: float = 0.0
    epoch_before: int = 0
    epoch_after: int = 0

    @property
    def seconds(self) -> float:
        return max(0.0, self.end_s - self.begin_s)

    @property
    def epochs(self) -> int:
        return self.epoch_after - self.epoch_before


class NodeLine(msgspec.Struct, frozen=True):
    """One node as the cluster and the operating system see it."""

    name: str
    address: str
    process: str
    state: str
    epoch: int
    owns: float
    role: str


class Event(msgspec.Struct, frozen=True):
    """Something done to the cluster while the traffic ran, for the chart. Monotonic seconds."""

    label: str
    begin_s: float
    end_s: float


class View(msgspec.Struct):
    """Everything a screen shows."""

    title: str
    begin_s: float
    phases: list[Phase] = []
    nodes: list[NodeLine] = []
    events: list[Event] = []
    report: Report | None = None
    traffic: bool = False
    epoch: int = 0
    operation: str = ""
    notes: list[str] = []

    def phase(self, key: str) -> Phase:
        return next(phase for phase in self.phases if phase.key == key)

    @property
    def running(self) -> Phase | None:
        return next((phase for phase in self.phases if phase.state is PhaseState.RUNNING), None)


def node_lines(status: dict[str, Any], names: dict[str, tuple[str, str]]) -> list[NodeLine]:
    """The nodes of a `status/1` document; `names` is address -> (name, state of the process)."""
    leader = status.get("leader")
    lines = []
    for node in status.get("nodes", []):
        address = str(node.get("address"))
        name, process = names.get(address, (address, "?"))
        role = "leader" if node.get("id") == leader else ("voter" if node.get("voter") else "")
        lines.append(
            NodeLine(
                name=name,
                address=address,
                process=process,
                state=str(node.get("state")),
                epoch=int(node.get("epoch") or 0),
                owns=float(node.get("owns") or 0.0),
                role=role,
            )
        )
    return lines
