"""Owns `lockstep topology watch`: running operations as a tree that is drawn anew while they go on.

Invariant: the tree is a function of what a node answered and nothing else. Without a terminal a tree is
printed when it says something new, not each time it is asked for.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

import click
import msgspec
from msgspec import UNSET

from lockstep.cli.shared import render
from lockstep.cli.shared.client import ClusterClient
from lockstep.cli.shared.plans import title
from lockstep.cli.status import progress_text
from lockstep.documents import read
from lockstep.documents.requests import Counts, Request, Waiting, Work
from lockstep.values.errors import OutcomeUnknown, PeerError

#: How often it asks: a person sees no delay, a node no load.
POLL_S: Final = 0.25
#: Where nothing but counts of bytes changes, how often that is printed: a log of hours stays readable.
NUMBERS_EVERY_S: Final = 2.0
#: Width of a bar that fills.
BAR_CELLS: Final = 20
ENDED: Final = ("done", "failed", "cancelled")
_MARKS: Final = {"done": "✓", "current": "▶", "to come": "·"}
_STATE_COLOURS: Final = {"done": "green", "failed": "red", "cancelled": "yellow"}
_LINE_COLOURS: Final = {"✓": "green", "▶": "bold cyan", "·": "dim", "!": "yellow"}

#: A `request/1` document as it came, which `-o json` prints.
Answer = Mapping[str, Any]


@click.command()
@click.argument("request_id", metavar="[ID]", required=False)
@click.option("--once", is_flag=True, help="Show how it stands now, and return.")
@render.wait_timeout
@render.of_call
def watch(request_id: str | None, once: bool, call: render.Call) -> int:
    """Follow one request, or all that are queued or running, until they have ended.

    Exits with 0 when all were done, 1 when one failed or was cancelled, 5 when time is up and one still runs.
    With `-o json`, one line for each change.
    """
    cluster = call.cluster()
    wanted = [request_id] if request_id is not None else live_ids(cluster)
    if not wanted:
        click.echo("nothing is queued or running", err=True)
        return 0
    shown = _screen(call.output)
    try:
        requests = _follow(cluster, wanted, shown, 0.0 if once else call.timeout_s)
    finally:
        shown.close()
    running = [request for request in requests if request.get("state") not in ENDED]
    if running and not once:
        raise OutcomeUnknown(
            f"request {running[0].get('id')} still runs after {call.timeout_s:g} s",
            hint=f"lockstep topology watch {running[0].get('id')}",
        )
    return (
        0
        if all(request.get("state") in (None, "done") for request in requests if request not in running)
        else 1
    )


def live_ids(cluster: ClusterClient) -> list[str]:
    return [str(r["id"]) for r in cluster.requests().get("requests", []) if r.get("state") not in ENDED]


def _follow(
    cluster: ClusterClient, wanted: Sequence[str], screen: Screen, timeout_s: float
) -> list[dict[str, Any]]:
    """The requests as they were last seen: ended, or when time was up."""
    deadline = time.monotonic() + timeout_s
    known: dict[str, dict[str, Any]] = {}
    silence = ""
    while True:
        for one in wanted:
            if known.get(one, {}).get("state") in ENDED:
                continue
            try:
                known[one] = cluster.request(one)
                silence = ""
            except PeerError as error:
                # The operation goes on without the asked node.
                silence = f"no answer: {error.message}"
        requests = [known[one] for one in wanted if one in known]
        screen.show(requests, silence)
        if len(requests) == len(wanted) and all(r.get("state") in ENDED for r in requests):
            return requests
        if time.monotonic() >= deadline:
            if not requests:
                raise OutcomeUnknown(f"nothing is known of request {wanted[0]}: {silence}")
            return requests
        time.sleep(POLL_S)


# -- the tree ----------------------------------------------------------------------------------


def tree_lines(request: Request, *, ages: bool = True) -> list[str]:
    """A request as lines of a tree: its stages, and below the present one whom and what it waits for.

    `ages` False leaves out what changes by itself with time.
    """
    lines = [f"request {request.id}  {title(request)}  {request.state}{_asked_by(request)}"]
    children: list[list[str]] = []
    if request.state in ENDED:
        children += [[f"! {request.reason}"]] if request.reason else []
        moved = progress_text(request.progress)
        children += [[moved]] if moved else []
        children.append([_epochs(request)])
    elif not request.path:
        children += [[f"! waits: {_waits(one, ages=ages)}"] for one in request.waiting] or [
            ["next: it begins"]
        ]
    if request.state not in ENDED and request.progress.tablets_left >= 0:
        children.append([f"{_bar(request.progress)}{progress_text(request.progress, ages=ages)}"])
    for at in request.path:
        branch = [f"{_MARKS[at.state]} {at.stage}" + (f"  epoch {at.epoch}" if at.epoch else "")]
        if at.state == "current":
            branch += _indented(_present(request, ages=ages))
        children.append(branch)
    return [*lines, *_indented(children)]


def _bar(progress: Counts) -> str:
    """`████████░░░░░░░░░░░░ `, by tablets; "" where nobody counted all."""
    if not progress.tablets_total:
        return ""
    done = BAR_CELLS * (progress.tablets_total - progress.tablets_left) // progress.tablets_total
    return f"{'█' * done}{'░' * (BAR_CELLS - done)} "


def _indented(children: Sequence[Sequence[str]]) -> list[str]:
    lines = []
    for index, child in enumerate(children):
        last = index == len(children) - 1
        for row, line in enumerate(child):
            lead = ("└─ " if last else "├─ ") if row == 0 else ("   " if last else "│  ")
            lines.append(lead + line)
    return lines


def _present(request: Request, *, ages: bool) -> list[list[str]]:
    """What is below the present stage: its barrier, then its work, then whatever else it waits for."""
    found: list[list[str]] = []
    barrier, waiting = request.barrier, list(request.waiting)
    working = {one.node for one in request.work if one.state == "running"}
    if barrier is not None:
        seen = ", ".join(map(str, barrier.seen)) or "nobody"
        branch = [f"barrier on epoch {barrier.epoch}: seen by {seen}"]
        held = [one for one in waiting if one.node not in working]
        awaited = {one.node for one in held}
        branch += _indented([[f"! {_waits(one, ages=ages)}"] for one in held] + [
            [f"node {one.node} has not seen it, and need not: last seen epoch {one.epoch}"]
            for one in barrier.unseen
            if one.node not in awaited
        ])  # fmt: skip
        found.append(branch)
        waiting = [one for one in waiting if one not in held]
    found += [[_work(one, ages=ages)] for one in request.work]
    mentioned = {one.node for one in request.work}
    found += [[f"! {_waits(one, ages=ages)}"] for one in waiting if one.node not in mentioned]
    return found


def _waits(one: Waiting, *, ages: bool) -> str:
    whom = f"node {one.node}: " if one.node and f"node {one.node}" not in one.reason else ""
    return f"{whom}{one.reason}" + (f" ({one.since_s:.1f} s)" if ages and one.since_s is not UNSET else "")


def _work(one: Work, *, ages: bool) -> str:
    """`stream on node 4  running  3.2 MiB of 10.0 MiB, 32%, 1.1 MiB/s, 6 s left, 12 of 40 files`."""
    moved, total = one.bytes, one.total_bytes
    facts = []
    if total:
        facts += [f"{render.bytes_text(moved)} of {render.bytes_text(total)}", f"{100 * moved // total}%"]
    elif moved:
        facts.append(render.bytes_text(moved))
    if ages and one.rate_bytes_s:
        facts.append(f"{render.bytes_text(one.rate_bytes_s)}/s")
    if ages and one.left_s >= 0 and one.state == "running":
        facts.append(f"{one.left_s:.0f} s left")
    facts += one.counts().done_of_all()
    if one.files_total:
        facts.append(f"{one.files_done} of {one.files_total} files")
    if one.text:
        facts.append(one.text)
    parts = [f"{one.kind} on node {one.node}", one.state, ", ".join(facts)]
    return "  ".join(part for part in parts if part)


def _asked_by(request: Request) -> str:
    return f"  asked by {request.actor}" if request.actor else ""


def _epochs(request: Request) -> str:
    asked = f"asked for at epoch {request.requested_epoch}"
    ran = f", began at {request.began_epoch}" if request.began_epoch else ", never began"
    return f"{asked}{ran}, ended at epoch {request.ended_epoch}"


# -- screens -----------------------------------------------------------------------------------


def _uncounted(request: Request) -> Request:
    """The request without what its work counts."""
    work = tuple(Work(one.node, one.kind, one.state, one.text) for one in request.work)
    return msgspec.structs.replace(request, work=work)


class Screen:
    """Prints each tree when it says something new; one that only counts further, now and then."""

    def __init__(self) -> None:
        self._told: dict[str, list[str]] = {}
        self._shapes: dict[str, list[str]] = {}
        self._told_at: dict[str, float] = {}
        self._silence = ""

    def show(self, answers: Sequence[Answer], silence: str) -> None:
        if silence and silence != self._silence:
            click.echo(silence, err=True)
        self._silence = silence
        for answer in answers:
            request = read(Request, answer)
            name, quiet = request.id, tree_lines(request, ages=False)
            if self._told.get(name) == quiet:
                continue
            shape, now = tree_lines(_uncounted(request), ages=False), time.monotonic()
            if self._shapes.get(name) == shape and now - self._told_at[name] < NUMBERS_EVERY_S:
                continue
            self._told[name], self._shapes[name], self._told_at[name] = quiet, shape, now
            self.tell(answer)

    def tell(self, answer: Answer) -> None:
        click.echo("\n".join(tree_lines(read(Request, answer))))

    def close(self) -> None:
        """Leave what was shown."""


class JsonScreen(Screen):
    """One `request/1` document a line."""

    def tell(self, answer: Answer) -> None:
        click.echo(json.dumps({"schema": "request/1", **answer}))


class LiveScreen(Screen):
    """One picture that is drawn again in place."""

    def __init__(self) -> None:
        super().__init__()
        from rich.console import Console
        from rich.live import Live

        self._live = Live(console=Console(no_color=render.no_colour(), highlight=False), auto_refresh=False)
        self._live.start()

    def show(self, answers: Sequence[Answer], silence: str) -> None:
        from rich.text import Text

        picture = Text()
        for answer in answers:
            request = read(Request, answer)
            for number, line in enumerate(tree_lines(request)):
                picture.append(f"{line}\n", style=_style(line, request.state, first=not number))
        if silence:
            picture.append(silence, style="yellow")
        self._live.update(picture, refresh=True)

    def close(self) -> None:
        self._live.stop()


def _style(line: str, state: str, *, first: bool) -> str:
    if first:
        return f"bold {_STATE_COLOURS.get(state, 'default')}"
    mark = line.lstrip("│├└─ ")[:1]
    return _LINE_COLOURS.get(mark, "default")


def _screen(output: str) -> Screen:
    if output == "json":
        return JsonScreen()
    return LiveScreen() if render.on_terminal() and sys.stdout.isatty() else Screen()
