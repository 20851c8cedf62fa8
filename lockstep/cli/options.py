"""Owns the options that several commands share, so that they read and behave the same everywhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import click

from lockstep.cli.client import DEFAULT_HOST
from lockstep.values.tokens import TOKEN_MAX, TOKEN_MIN

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

#: A node answers status in milliseconds, and a change within `timeouts.metadata_ms` (10 s by default), with
#: what is known of it; longer than this it is paused, cut off or overloaded.
CALL_TIMEOUT_S: Final = 15.0

host: Decorator = click.option(
    "--host",
    default=DEFAULT_HOST,
    envvar="LOCKSTEP_HOST",
    show_default=True,
    metavar="ADDRESS[:PORT]",
    help="Admin address of any node of the cluster.",
)
call_timeout: Decorator = click.option(
    "--call-timeout",
    "call_timeout_s",
    default=CALL_TIMEOUT_S,
    show_default=True,
    metavar="SECONDS",
    type=click.FloatRange(min=0, min_open=True),
)
output: Decorator = click.option(
    "-o",
    "--output",
    type=click.Choice(["table", "json"]),
    default="table",
    show_default=True,
    help="json has a versioned schema and is meant for scripts.",
)
dry_run: Decorator = click.option(
    "--dry-run", is_flag=True, help="Show the steps, what moves and what it waits for; change nothing."
)
plan: Decorator = click.option(
    "--plan",
    metavar="FILE",
    help="Change nothing; write the dry run to FILE, for `lockstep topology apply FILE`.",
)
#: A place in the ring, as Murmur3 partitioners number them; the lowest number is no token.
TOKEN: Final = click.IntRange(TOKEN_MIN, TOKEN_MAX, min_open=True)
wait: Decorator = click.option(
    "--wait/--no-wait", default=True, show_default=True, help="Return when the operation has ended."
)
wait_timeout: Decorator = click.option(
    "--timeout",
    "timeout_s",
    default=600.0,
    show_default=True,
    metavar="SECONDS",
    type=click.FloatRange(min=0),
    help="Stop waiting after this long; the operation goes on.",
)


def together(*decorators: Decorator) -> Decorator:
    """Options that go together, in the order in which help shows them."""

    def decorated(command: Callable[..., Any]) -> Callable[..., Any]:
        for decorator in reversed(decorators):
            command = decorator(command)
        return command

    return decorated


#: Of every command that asks a node.
of_call: Decorator = together(host, call_timeout, output)
#: Of every command that changes something and can wait for its end.
of_change: Decorator = together(dry_run, wait, wait_timeout, of_call)
