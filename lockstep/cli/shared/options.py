"""Owns the options that several commands share, so that they read and behave the same everywhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import click

from lockstep.cli.shared.client import DEFAULT_HOST, PASSWORD_VARIABLE, SHOWN
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


def _shown(context: click.Context, parameter: click.Parameter, value: str | None) -> None:
    """Keep what an option says for whoever makes the client."""
    context.meta.setdefault(SHOWN, {})[parameter.name] = value


def _shown_option(name: str, variable: str, metavar: str, text: str) -> Decorator:
    return click.option(
        name, envvar=variable, metavar=metavar, help=text, expose_value=False, callback=_shown
    )


token_file: Decorator = _shown_option(
    "--token-file",
    "LOCKSTEP_TOKEN_FILE",
    "FILE",
    "The node's admin token; found by itself for nodes on this machine.",
)
user: Decorator = _shown_option(
    "--user", "LOCKSTEP_USER", "ROLE", f"Log in as this role, with the password in {PASSWORD_VARIABLE}."
)
ca_file: Decorator = _shown_option(
    "--ca-file",
    "LOCKSTEP_CA_FILE",
    "FILE",
    "Certificate of who signed the node's, where its port speaks TLS.",
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
of_call: Decorator = together(host, token_file, user, ca_file, call_timeout, output)
#: Of every command that changes something and can wait for its end.
of_change: Decorator = together(dry_run, wait, wait_timeout, of_call)
