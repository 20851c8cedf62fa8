"""Owns what the demo shows while it runs (phases, the traffic's latest numbers, the cluster), and how it
looks: a live picture on a terminal, plain lines elsewhere.

Invariant: both tell the same facts; nothing is told by colour alone; NO_COLOR is respected. Progress goes to
stderr, so that stdout holds the verdict only. Only values; screens read them, the tour writes them.
"""

from __future__ import annotations

import enum
import os
import time
from typing import TYPE_CHECKING, Any, Final, Protocol, TextIO

import msgspec

from lockstep.local.demo_messages import Report

if TYPE_CHECKING:
    from rich.console import RenderableType


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


#: Pictures a second on a terminal.
FRAMES_PER_S: Final = 8
#: Without a terminal, a long phase says this often that it goes on.
LINE_INTERVAL_S: Final = 5.0

_MARKS: Final = {
    PhaseState.WAITING: " ",
    PhaseState.RUNNING: "•",
    PhaseState.DONE: "✓",
    PhaseState.FAILED: "✗",
    PhaseState.SKIPPED: "-",
}
_STYLES: Final = {
    PhaseState.WAITING: "dim",
    PhaseState.RUNNING: "bold cyan",
    PhaseState.DONE: "green",
    PhaseState.FAILED: "bold red",
    PhaseState.SKIPPED: "dim",
}


class Screen(Protocol):
    def update(self, view: View) -> None:
        """Show the view; called often, so it must be cheap when nothing changed."""

    def close(self, view: View) -> None:
        """Leave a last picture."""


def open_screen(stream: TextIO) -> Screen:
    """The screen that suits `stream`."""
    return LiveScreen(stream) if stream.isatty() and os.environ.get("TERM") != "dumb" else LineScreen(stream)


def traffic_line(view: View) -> str:
    """`612 ops/s, p50 2.1 ms, p99 9.8 ms; 9,120 writes acknowledged, 9,118 reads, 0 errors`."""
    report = view.report
    if report is None:
        return ""
    counts = report.counts
    rate = f"{report.ops_per_s:,.0f} ops/s  p50 {report.p50_ms:.1f} ms  p99 {report.p99_ms:.1f} ms"
    if report.total:
        return f"{report.done:,} of {report.total:,} rows  {rate}"
    if not view.traffic:
        return ""
    errors = f"{counts.client_errors} errors, {counts.raw_errors} before retries"
    return f"{rate}  |  {counts.writes_acknowledged:,} writes, {counts.reads:,} reads, {errors}"


class LineScreen:
    """One line when a phase begins, one when it ends, and some in between when it is long."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._told: dict[str, PhaseState] = {}
        self._notes = 0
        self._last_s = 0.0

    def update(self, view: View) -> None:
        for note in view.notes[self._notes :]:
            self._line(view, note)
        self._notes = len(view.notes)
        for phase in view.phases:
            before = self._told.get(phase.key, PhaseState.WAITING)
            if phase.state is before:
                continue
            self._told[phase.key] = phase.state
            if phase.state is PhaseState.RUNNING:
                self._line(view, f"{phase.title} …")
            else:
                seconds = f" ({_seconds(phase)})" if phase.end_s else ""
                told = phase.told or phase.state.value
                self._line(view, f"{_MARKS[phase.state]} {phase.title}: {told}{seconds}")
        running = view.running
        if running is not None and time.monotonic() - self._last_s >= LINE_INTERVAL_S:
            parts = [running.told, view.operation, traffic_line(view)]
            self._line(view, "  " + "; ".join(part for part in parts if part))

    def close(self, view: View) -> None:
        self.update(view)

    def _line(self, view: View, text: str) -> None:
        self._last_s = time.monotonic()
        print(f"{self._last_s - view.begin_s:6.1f} s  {text}", file=self._stream, flush=True)


class LiveScreen:
    """One picture that is drawn again in place."""

    def __init__(self, stream: TextIO) -> None:
        from rich.console import Console
        from rich.live import Live

        self._console = Console(file=stream, no_color=bool(os.environ.get("NO_COLOR")), highlight=False)
        self._live = Live(console=self._console, auto_refresh=False, transient=False)
        self._live.start()
        self._drawn_s = 0.0

    def update(self, view: View) -> None:
        now = time.monotonic()
        if now - self._drawn_s >= 1 / FRAMES_PER_S:
            self._drawn_s = now
            self._live.update(self._picture(view), refresh=True)

    def close(self, view: View) -> None:
        self._live.update(self._picture(view, ended=True), refresh=True)
        self._live.stop()

    def _picture(self, view: View, *, ended: bool = False) -> RenderableType:
        from rich.console import Group
        from rich.text import Text

        elapsed = time.monotonic() - view.begin_s
        head = Text.assemble((view.title, "bold"), f"   {elapsed:.0f} s   epoch {view.epoch}")
        parts: list[RenderableType] = [head, *(Text(note, style="dim") for note in view.notes), Text()]
        parts.append(_phases(view))
        if not ended:
            if view.nodes:
                parts += [Text(), _nodes(view.nodes)]
            parts += [Text(), _line(traffic_line(view), "cyan")]
            parts.append(_line(view.operation, "yellow"))
        return Group(*parts)


def _line(text: str, style: str) -> RenderableType:
    """A line that is there even when it is empty, so that the picture keeps its height."""
    from rich.text import Text

    return Text(text or " ", style=style, no_wrap=True, overflow="ellipsis")


def _phases(view: View) -> RenderableType:
    from rich.spinner import Spinner
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 1))
    table.add_column(width=1)
    table.add_column(no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(overflow="ellipsis", no_wrap=True)
    for phase in view.phases:
        style = _STYLES[phase.state]
        mark: RenderableType = Text(_MARKS[phase.state], style=style)
        if phase.state is PhaseState.RUNNING:
            mark = Spinner("dots", style=style)
        table.add_row(mark, Text(phase.title, style=style), _seconds(phase), Text(phase.told, style=""))
    return table


def _nodes(nodes: list[NodeLine]) -> RenderableType:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for name in ("node", "address", "process", "state"):
        table.add_column(name)
    table.add_column("owns", justify="right")
    table.add_column("epoch", justify="right")
    table.add_column("metadata")
    for node in nodes:
        good = node.process == "running" and node.state == "normal"
        style = "green" if good else ("red" if node.process == "stopped" else "yellow")
        table.add_row(
            node.name,
            node.address,
            Text(node.process, style=style),
            Text(node.state, style=style),
            f"{node.owns * 100:.1f}%",
            str(node.epoch),
            node.role,
        )
    return table


def _seconds(phase: Phase) -> str:
    if phase.state is PhaseState.RUNNING:
        return f"{time.monotonic() - phase.begin_s:.1f} s"
    return f"{phase.seconds:.1f} s" if phase.end_s else ""
