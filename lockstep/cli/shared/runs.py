"""Following a repair, a backup or a restore from the command line, and showing what became of it.

Invariant: a wait that ends early never says that the run failed; it says its id, and exits 5.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import click

from lockstep.cli.shared import render
from lockstep.values.errors import OutcomeUnknown, PeerError

POLL_S: Final = 0.2
_COLOURS: Final = {"done": "green", "failed": "red", "cancelled": "yellow"}
Found = Mapping[str, Any]


def follow(
    begun: Found,
    what: str,
    ask: Callable[[int], Found],
    headline: Callable[[Found], str],
    timeout_s: float,
    poll_s: float = POLL_S,
) -> Found:
    """`begun` once it has ended; how far it is goes to stderr. OutcomeUnknown when that takes too long."""
    deadline, told, found = time.monotonic() + timeout_s, "", begun
    while found["state"] == "running":
        if time.monotonic() >= deadline:
            raise OutcomeUnknown(
                f"{what} {begun['id']} still runs after {timeout_s:g} s",
                hint=f"it goes on; end it with `lockstep repair --cancel {begun['id']}`",
            )
        time.sleep(poll_s)
        try:
            found = ask(int(begun["id"]))
            line = headline(found)
        except PeerError as error:
            line = f"no answer: {error.message}"
        if line != told:
            click.echo(line, err=True)
            told = line
    return found


def show(found: Found, headline: Callable[[Found], str], output: str, schema: str) -> None:
    """One run, as text or as JSON of this schema."""
    if output == "json":
        render.json_out(found, schema)
        return
    click.echo(render.styled(headline(found), _COLOURS.get(found["state"], "")))
    if reason := found.get("reason"):
        click.echo(f"  {reason}")


def show_steps(steps: Sequence[str]) -> None:
    """What a plan does, numbered."""
    for number, step in enumerate(steps, start=1):
        click.echo(f"{number}. {step}")
