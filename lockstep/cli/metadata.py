"""Owns `lockstep metadata`: read the value at an epoch, compare two epochs, prove that nodes agree."""

from __future__ import annotations

import click
import msgspec

from lockstep.cli.shared import client, options, render
from lockstep.cli.shared.verify import Comparison, compare
from lockstep.documents import read
from lockstep.documents.plans import MetadataDiff
from lockstep.values.errors import ConfigurationError

#: Characters of a value that `diff` shows to people: some lines of a terminal.
DIFF_CHARACTERS_MAX = 300


@click.group()
def metadata() -> None:
    """The one value that decides ownership and shape, at any epoch."""


@metadata.command()
@click.option("--epoch", type=int, help="Which epoch; the newest by default.")
@options.of_call
def show(epoch: int | None, host: str, call_timeout_s: float, output: str) -> None:
    """Show the cluster metadata at an epoch."""
    answer = client.connect(host, call_timeout_s).metadata(epoch)
    if output == "json":
        render.json_out(answer, "metadata/1")
        return
    render.document(answer)


@metadata.command()
@click.argument("one", metavar="E1", type=int)
@click.argument("other", metavar="E2", type=int)
@options.of_call
def diff(one: int, other: int, host: str, call_timeout_s: float, output: str) -> None:
    """Show what changed from epoch E1 to epoch E2."""
    answer = client.connect(host, call_timeout_s).metadata_diff(one, other)
    if output == "json":
        render.json_out(answer, "metadata-diff/1")
        return
    changes = read(MetadataDiff, answer).changes
    if not changes:
        click.echo(f"epochs {one} and {other} do not differ")
    for change in changes:
        click.echo(change.path)
        for sign, value, colour in (("-", change.before, "red"), ("+", change.after, "green")):
            if value is not None:
                click.echo(render.styled(f"  {sign} {_shortened(render.cell_text(value))}", colour))


def _shortened(text: str) -> str:
    """A whole ring is one value of thousands of characters; JSON has it all."""
    more = len(text) - DIFF_CHARACTERS_MAX
    return text if more <= 0 else f"{text[:DIFF_CHARACTERS_MAX]}… ({more} characters more: -o json)"


@metadata.command()
@click.option("--from", "first", type=int, default=1, show_default=True, help="First epoch to check.")
@options.of_call
def verify(first: int, host: str, call_timeout_s: float, output: str) -> int:
    """Check that every node holds the same unbroken log and the same metadata, as far back as each keeps it.

    Each node computes the hash chain of its log anew, also of its archive, and the digest of its metadata at
    the newest epoch that all have, part by part. The first divergence is named: node, epoch, part.

    Exit code 0: all nodes agree. 1: a chain is broken or nodes differ. 6: what could be read agrees, but
    a node could not be asked or has stopped.
    """
    cluster = client.connect(host, call_timeout_s)
    newest = int(cluster.status().get("epoch", 0))
    if not 1 <= first <= max(newest, 1):
        raise ConfigurationError(f"epochs {first} to {newest} are no range", hint="the first epoch is 1")
    found = compare(cluster, cluster.node_list(), first)
    rows = [asked.row() for asked in found.nodes]
    if output == "json":
        report = {
            "from": first,
            "to": found.epoch,
            "agree": not found.wrong,
            "complete": not found.unread,
            "first_divergence": msgspec.to_builtins(found.first) if found.first is not None else None,
            "nodes": rows,
        }
        render.json_out(report, "metadata-verify/1")
    else:
        for row in rows:
            row["digest"] = str(row["digest"] or "")[:12]
        columns = ["node", "address", "oldest", "newest", "digest", "result", "why"]
        render.table(columns, [[row[name] for name in columns] for row in rows])
        for line in _sentences(found):
            click.echo(render.styled(line, "red" if found.wrong else "green", bold=True))
    if found.wrong:
        return 1
    return 6 if found.unread else 0


def _sentences(found: Comparison) -> list[str]:
    if found.wrong:
        return [f"nodes differ: {found.first.text()}" if found.first is not None else "nodes differ"]
    oldest = [int(asked.proof.oldest) for asked in found.nodes if asked.proof is not None]
    if not oldest:
        return ["no node could be asked"]
    lines = [f"all logs read agree from epoch {min(oldest)} to {found.epoch}"]
    digests = [str(asked.digest.digest) for asked in found.nodes if asked.digest is not None]
    if digests:
        lines.append(f"the metadata at epoch {found.epoch} is the same: digest {digests[0][:12]}")
    missing = [str(asked.node) for asked in found.unread]
    return [*lines, f"not all could be compared: node {', '.join(missing)}"] if missing else lines
