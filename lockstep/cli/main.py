"""Owns the root of the command tree and how every failure ends.

Invariant: whatever fails ends as `error[CODE]: sentence`, an optional hint, and the exit code of its kind:
0 ok, 1 failed, 2 usage, 3 refused by a precondition, 4 unreachable, 5 still running or unknown, 6 in part.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final, NoReturn

import click

from lockstep.values.errors import ConfigurationError, LockstepError

#: Name -> (module:attribute, section of the help page, one line of help). The module is imported on use.
COMMANDS: Final[dict[str, tuple[str, str, str]]] = {
    "demo": (
        "cluster:demo",
        "Start here",
        "Tour: a cluster, load, topology changes under traffic, the proof.",
    ),
    "cluster": ("cluster:cluster", "Start here", "Local clusters of real processes: create, break, destroy."),
    "node": ("node:node", "Start here", "Run one node in the foreground, or ask one about itself."),
    "status": ("status:status", "Ask a running cluster", "The verdict, the nodes, and what is running."),
    "ring": (
        "ring:ring",
        "Ask a running cluster",
        "Who owns which tokens; the ring of a cluster without a log.",
    ),
    "describe": ("answers:describe", "Ask a running cluster", "The CQL that makes a keyspace or a table."),
    "metadata": ("metadata:metadata", "Ask a running cluster", "Show, compare and verify the metadata."),
    "cms": ("cms:cms", "Ask a running cluster", "The metadata group and its log."),
    "gossip": (
        "answers:gossip",
        "Ask a running cluster",
        "What nodes say of themselves, and how alive they seem.",
    ),
    "features": (
        "answers:features",
        "Ask a running cluster",
        "What nodes support, and what the cluster has enabled.",
    ),
    "why": (
        "why:why",
        "Ask a running cluster",
        "The story of a node, a request or a range; why it waits.",
    ),
    "reconcile": (
        "reconcile:reconcile",
        "Ask a running cluster",
        "Tracked tables: what each replica lacks, and why the journal keeps it.",
    ),
    "upgrade": (
        "upgrade:upgrade",
        "Change a running cluster",
        "From the ring without a log to a cluster with one.",
    ),
    "topology": (
        "topology:topology",
        "Change a running cluster",
        "Change who owns what; plan, watch and cancel it.",
    ),
    "tablets": (
        "tablets:tablets",
        "Change a running cluster",
        "Tables that spread by tablets: list, draw and move them.",
    ),
    "repair": (
        "repair:repair",
        "Change a running cluster",
        "Make replicas equal that missed writes.",
    ),
    "backup": (
        "backup:backup",
        "Change a running cluster",
        "Back tables up on all nodes, and restore them.",
    ),
    "recovery": (
        "recovery:recovery",
        "Ask a running cluster",
        "The two groups: how they fare, and making them anew.",
    ),
    "pipeline": (
        "pipeline:pipeline",
        "Move and check whole tables",
        "Jobs on Spark: export, load, compare, audit.",
    ),
    "sim": ("sim:sim", "Without a cluster", "Deterministic simulations with faults, by seed."),
    "explain": ("why:explain", "Without a cluster", "What an error code means and what to do."),
}

INTERRUPTED_EXIT_CODE: Final = 130


class LazyGroup(click.Group):
    """A group whose commands are imported when used; its help page needs none of them."""

    def __init__(self, *, table: Mapping[str, tuple[str, str, str]], **options: Any) -> None:
        super().__init__(**options)
        self._table = table

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        entry = self._table.get(cmd_name)
        if entry is None:
            return None
        module, _, attribute = entry[0].partition(":")
        command = getattr(importlib.import_module(f"lockstep.cli.{module}"), attribute)
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and not args[0].startswith("-") and args[0] not in self._table:
            raise click.NoSuchCommand(args[0], possibilities=self._table, ctx=ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        sections: dict[str, list[tuple[str, str]]] = {}
        for name, (_, section, line) in self._table.items():
            sections.setdefault(section, []).append((name, line))
        for section, rows in sections.items():
            with formatter.section(section):
                formatter.write_dl(rows)


class Root(LazyGroup):
    """The outermost group: turns every exception into an exit code."""

    def main(  # type: ignore[override]
        self, args: Sequence[str] | None = None, prog_name: str | None = None, **extra: Any
    ) -> NoReturn:
        """Run a command and end the process with the exit code of what happened."""
        extra.pop("standalone_mode", None)
        sys.exit(self._guarded(args, prog_name, extra))

    def _guarded(self, args: Sequence[str] | None, prog_name: str | None, extra: dict[str, Any]) -> int:
        try:
            result = super().main(args, prog_name, standalone_mode=False, **extra)
            sys.stdout.flush()
        except LockstepError as error:
            click.echo(error.render(), err=True)
            return error.exit_code
        except click.exceptions.NoArgsIsHelpError as error:
            click.echo(error.format_message(), err=True)
            return error.exit_code
        except click.ClickException as error:
            click.echo(_usage_text(error), err=True)
            return error.exit_code
        except click.Abort:
            click.echo("interrupted", err=True)
            return INTERRUPTED_EXIT_CODE
        except BrokenPipeError:
            # The reader (head, less) went away: not a failure, and Python must not complain at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 0
        return result if isinstance(result, int) else 0


def _usage_text(error: click.ClickException) -> str:
    text = f"error[{ConfigurationError.code}]: {error.format_message()}"
    context = error.ctx if isinstance(error, click.UsageError) else None
    return f"{text}\nhint: {context.command_path} --help" if context is not None else text


@click.group(
    cls=Root,
    table=COMMANDS,
    help="Lockstep: a distributed wide-column database whose nodes always agree on who owns what.",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(package_name="lockstep-db", prog_name="lockstep")
def root() -> None:
    pass


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point of the `lockstep` command; does not return."""
    root.main(arguments, prog_name="lockstep")


if __name__ == "__main__":
    main()
