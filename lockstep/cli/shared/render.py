"""Owns how answers look, aligned text everywhere, colour and boxes only on a terminal, JSON for scripts, and
the options that several commands share, so that they read and behave the same everywhere.

Invariant: the text without a terminal holds the same facts as with one; nothing is told by colour alone.
"""

from __future__ import annotations

import functools
import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import click
import msgspec

from lockstep.cli.shared.client import DEFAULT_HOST, PASSWORD_VARIABLE, SHOWN, ClusterClient, connect
from lockstep.documents.texts import bytes_text as bytes_text
from lockstep.values.tokens import TOKEN_MAX, TOKEN_MIN

#: Columns of numbers are aligned to the right.
_NUMERIC: Final = (int, float)
#: Between two columns of a table on a terminal, with its margin.
_GAP: Final = 3
#: The last column of a table is not made narrower than this.
_LAST_COLUMN_WIDTH_MIN: Final = 24
#: Cells of `document` are cut here: a node's tokens would make lines of thousands of columns.
CELL_WIDTH_MAX: Final = 48


def json_out(document: Mapping[str, Any], schema: str) -> None:
    """Print a JSON object whose first member is its schema (the node's own, when it has one)."""
    click.echo(json.dumps({"schema": schema, **document}, indent=2))


def table(columns: Sequence[str], rows: Sequence[Sequence[Any]], *, title: str = "") -> None:
    """Print rows under their column names; nothing at all when there are no rows."""
    if not rows:
        return
    texts = [[cell_text(cell) for cell in row] for row in rows]
    right = [all(isinstance(row[i], _NUMERIC) for row in rows) for i in range(len(columns))]
    if on_terminal():
        _rich_table(columns, texts, right, title)
        return
    if title:
        click.echo(title)
    widths = [max(len(name), *(len(row[i]) for row in texts)) for i, name in enumerate(columns)]
    for line in [list(columns), *texts]:
        cells = [
            text.rjust(width) if to_right else text.ljust(width)
            for text, width, to_right in zip(line, widths, right, strict=True)
        ]
        click.echo("  ".join(cells).rstrip())


def facts(pairs: Sequence[tuple[str, Any]]) -> None:
    """Print `name  value` lines with the values in one column."""
    width = max((len(name) for name, _ in pairs), default=0)
    for name, value in pairs:
        click.echo(f"{name.ljust(width)}  {cell_text(value)}".rstrip())


def document(body: Mapping[str, Any]) -> None:
    """Print any answer: its plain members as facts, its lists of objects as tables, the rest indented.

    Long cells of tables are cut; JSON has them whole.
    """
    plain = [(k, v) for k, v in body.items() if k != "schema" and not isinstance(v, dict | list)]
    facts(plain)
    for key, value in body.items():
        if isinstance(value, dict) and value:
            click.echo(f"\n{key}")
            facts([(f"  {name}", item) for name, item in value.items()])
        elif isinstance(value, list) and value:
            click.echo()
            if all(isinstance(item, dict) for item in value):
                columns = list(dict.fromkeys(name for item in value for name in item))
                table(columns, [[_cut(item.get(name, "")) for name in columns] for item in value], title=key)
            else:
                facts([(key, ", ".join(cell_text(item) for item in value))])


def _cut(value: Any) -> Any:
    if isinstance(value, _NUMERIC) or value is None:
        return value
    text = cell_text(value)
    return text if len(text) <= CELL_WIDTH_MAX else text[: CELL_WIDTH_MAX - 1] + "…"


def cell_text(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.2f}"
    if isinstance(value, list) and all(isinstance(part, str | int) for part in value):
        return ", ".join(str(part) for part in value)
    if isinstance(value, dict | list):
        return json.dumps(value)
    return str(value)


def counted(count: int, what: str) -> str:
    """`1 range`, `2 ranges`."""
    return f"{count} {what}{'' if count == 1 else 's'}"


def time_text(at_us: int) -> str:
    """Local date and time of a wall clock in microseconds."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at_us / 1e6))


def styled(text: str, colour: str, *, bold: bool = False) -> str:
    """Colour on a terminal that wants it, plain text elsewhere."""
    return click.style(text, fg=colour, bold=bold) if on_terminal() and not no_colour() else text


def on_terminal() -> bool:
    return sys.stdout.isatty()


def confirm(yes: bool, question: str) -> None:
    """Go on only where `--yes` says so, or a person does."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise click.UsageError("--yes is needed where nobody can be asked")
    click.confirm(question, abort=True)


def no_colour() -> bool:
    """Whether the user asked for plain text."""
    return bool(os.environ.get("NO_COLOR"))


def _rich_table(
    columns: Sequence[str], texts: Sequence[Sequence[str]], right: Sequence[bool], title: str
) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    made = Table(box=box.SIMPLE_HEAD, title=title or None, title_justify="left", pad_edge=False)
    # Only the last column is folded. A terminal too narrow for the others wraps the lines as any text: words
    # broken over a few characters each cannot be read, or found by looking for them.
    widths = [max(len(name), *(len(row[i]) for row in texts)) for i, name in enumerate(columns)]
    fixed = sum(widths[:-1]) + _GAP * len(columns)
    for number, (name, to_right) in enumerate(zip(columns, right, strict=True)):
        last = number == len(columns) - 1
        made.add_column(name, justify="right" if to_right else "left", overflow="fold", no_wrap=not last)
    for row in texts:
        made.add_row(*(_state_text(cell, Text) for cell in row))
    console = Console(no_color=no_colour())
    console.width = max(console.width, fixed + min(widths[-1], _LAST_COLUMN_WIDTH_MIN))
    console.print(made, soft_wrap=False)


_STATE_COLOURS: Final = {
    "up": "green", "running": "green", "done": "green", "normal": "green",
    "down": "red", "stopped": "red", "failed": "red",
    "paused": "yellow", "queued": "yellow", "cancelling": "yellow", "cancelled": "yellow",
    "bootstrapping": "yellow", "decommissioning": "yellow",
}  # fmt: skip


def _state_text(cell: str, text_type: Any) -> Any:
    return text_type(cell, style=_STATE_COLOURS.get(cell, ""))


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


class Call(msgspec.Struct, frozen=True):
    """What the options say that commands share which ask a node; `dry_run` and what follows, of some."""

    host: str
    call_timeout_s: float
    output: str
    dry_run: bool = False
    wait: bool = False
    timeout_s: float = 0.0
    plan: str | None = None
    refuse: bool = False

    def cluster(self) -> ClusterClient:
        """A client for the node; nothing is sent yet."""
        return connect(self.host, self.call_timeout_s)

    def as_json(self, answer: Mapping[str, Any], schema: str) -> bool:
        """Print it where JSON is wanted; whether it was."""
        if self.output == "json":
            json_out(answer, schema)
        return self.output == "json"


def _called(command: Callable[..., Any]) -> Callable[..., Any]:
    """Hand the options that Call knows to the command as `call`."""

    @functools.wraps(command)
    def handed(*given: Any, **options: Any) -> Any:
        shared = {name: options.pop(name) for name in Call.__struct_fields__ if name in options}
        return command(*given, **options, call=Call(**shared))

    return handed


def together(*decorators: Decorator) -> Decorator:
    """Options that go together, in the order in which help shows them."""

    def decorated(command: Callable[..., Any]) -> Callable[..., Any]:
        for decorator in reversed(decorators):
            command = decorator(command)
        return command

    return decorated


#: Of every command that asks a node.
of_call: Decorator = together(host, token_file, user, ca_file, call_timeout, output, _called)
#: Of every command that changes something and can wait for its end.
of_change: Decorator = together(dry_run, wait, wait_timeout, of_call)
