"""Owns `lockstep metadata`: read the value at an epoch, compare two epochs, prove that nodes agree.

Invariant: a node is said to differ only from what a majority of the answers holds; without a majority all
sides are named. Nothing is compared that a node did not compute anew from its log or its value.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import click
import msgspec

from lockstep.cli.shared import render
from lockstep.cli.shared.client import ClusterClient
from lockstep.documents import read
from lockstep.documents.requests import MetadataDiff
from lockstep.documents.service import Digest, LoggedEntry, Proof
from lockstep.documents.status import ListedNode
from lockstep.values.errors import ConfigurationError, LockstepError, LogTruncated, PeerError

#: Part of the metadata in which logs themselves differ.
LOG_PART = "log"


class Divergence(msgspec.Struct, frozen=True):
    """The first epoch at which a node is known to differ, and in which part. `exact` is false when earlier
    epochs cannot be compared any more: it may have begun before."""

    node: int
    epoch: int
    part: str
    exact: bool = True

    def text(self) -> str:
        when = "at epoch" if self.exact else "at epoch or before"
        return f"node {self.node} differs first {when} {self.epoch}, in {self.part}"


class Asked(msgspec.Struct):
    """A node, what it proved, and what was found."""

    node: int
    address: str
    client: ClusterClient
    proof: Proof | None = None
    digest: Digest | None = None
    result: str = "agrees"
    why: str = ""

    def row(self) -> dict[str, Any]:
        proof = self.proof or Proof()
        return {
            "node": self.node,
            "address": self.address,
            "oldest": proof.oldest,
            "newest": proof.epoch,
            "entries": max(0, proof.epoch - proof.oldest + 1) if self.proof is not None else 0,
            "digest": self.digest.digest if self.digest is not None else None,
            "result": self.result,
            "why": self.why,
        }


class Comparison(msgspec.Struct):
    """`epoch` is the newest one that all answering nodes have; 0 when nobody answered."""

    nodes: list[Asked]
    epoch: int = 0
    first: Divergence | None = None

    @property
    def wrong(self) -> list[Asked]:
        return [asked for asked in self.nodes if asked.result == "differs"]

    @property
    def unread(self) -> list[Asked]:
        return [asked for asked in self.nodes if asked.result in ("unreachable", "stopped", "not compared")]


def compare(cluster: ClusterClient, nodes: Sequence[ListedNode], first: int) -> Comparison:
    """Ask every node for its proof from `first` on, then compare hashes, then digests by part."""
    found = Comparison([])
    for node in nodes:
        client = cluster.at(node.address, node.admin_port)
        found.nodes.append(_proved(Asked(node.id, node.address, client), first))
    answering = [asked for asked in found.nodes if asked.proof is not None]
    if not answering:
        return found
    found.epoch = min(asked.proof.epoch for asked in answering if asked.proof is not None)
    divergences = [_broken_chain(asked) for asked in answering]
    divergences += _by_marks(answering, first)
    for asked in answering:
        _digested(asked, found.epoch)
    known = {divergence.node for divergence in divergences if divergence is not None}
    divergences += _by_digests(answering, found.epoch, first, known)
    for divergence in divergences:
        if divergence is not None:
            asked = next(one for one in answering if one.node == divergence.node)
            if asked.result != "differs":
                asked.result, asked.why = "differs", asked.why or divergence.text()
            if found.first is None or divergence.epoch < found.first.epoch:
                found.first = divergence
    return found


def _proved(asked: Asked, first: int) -> Asked:
    try:
        asked.proof = asked.client.metadata_proof(first)
    except PeerError as error:
        asked.result, asked.why = "unreachable", error.message
        return asked
    if asked.proof.broken:
        asked.result, asked.why = "stopped", f"it applies nothing after this: {asked.proof.broken}"
    return asked


def _broken_chain(asked: Asked) -> Divergence | None:
    problem = asked.proof.problem if asked.proof is not None else None
    if problem is None:
        return None
    asked.result, asked.why = "differs", problem.reason
    return Divergence(asked.node, problem.epoch, LOG_PART)


def _by_marks(answering: Sequence[Asked], first: int) -> list[Divergence]:
    """Differences of the epochs whose hash nodes keep: each node's first, then found exactly by halving."""
    agreed: dict[int, dict[str, list[Asked]]] = {}
    for asked in answering:
        for epoch, mark in asked.proof.marks if asked.proof is not None else ():
            agreed.setdefault(epoch, {}).setdefault(mark, []).append(asked)
    found: dict[int, Divergence] = {}
    low = first - 1
    for epoch in sorted(agreed):
        groups = list(agreed[epoch].values())
        if len(groups) == 1:
            low = epoch if len(groups[0]) == len(answering) else low
            continue
        good, wrong = _sides(groups)
        for asked in wrong:
            if asked.node not in found:
                found[asked.node] = _first_difference(good, asked, low, epoch, LOG_PART, _hash_at)
    return list(found.values())


def _digested(asked: Asked, epoch: int) -> None:
    try:
        asked.digest = asked.client.metadata_digest(epoch)
    except LogTruncated as error:
        if asked.result == "agrees":
            asked.result, asked.why = "not compared", error.message
    except PeerError as error:
        asked.result, asked.why = "unreachable", error.message
    except LockstepError as error:
        asked.result, asked.why = "differs", error.message


def _by_digests(
    answering: Sequence[Asked], epoch: int, first: int, known: Collection[int]
) -> list[Divergence]:
    """Differences of the values at one epoch, but for nodes whose difference is `known`. When the logs
    differ, the values do anyway."""
    compared = [asked for asked in answering if asked.digest is not None]
    by_hash = _grouped(compared, lambda digest: digest.hash)
    if len(by_hash) > 1:
        good, wrong = _sides(by_hash)
        return [
            _first_difference(good, asked, first - 1, epoch, LOG_PART, _hash_at)
            for asked in wrong
            if asked.node not in known
        ]
    found = []
    for part in _digest(compared[0]).parts if compared else ():
        groups = _grouped(compared, lambda digest, part=part: digest.parts.get(part))  # type: ignore[misc]
        if len(groups) > 1:
            good, wrong = _sides(groups)
            for asked in wrong:
                low = max(_oldest_value(good), _oldest_value(asked), first) - 1
                found.append(_first_difference(good, asked, low, epoch, part, _part_at))
    return found


def _grouped(compared: Sequence[Asked], told: Callable[[Digest], str | None]) -> list[list[Asked]]:
    """Nodes by what their digest documents hold there."""
    groups: dict[str | None, list[Asked]] = {}
    for asked in compared:
        groups.setdefault(told(_digest(asked)), []).append(asked)
    return list(groups.values())


def _digest(asked: Asked) -> Digest:
    assert asked.digest is not None, "only nodes that told it are compared"
    return asked.digest


def _sides(groups: Sequence[list[Asked]]) -> tuple[Asked, list[Asked]]:
    """One of the largest group, and all that are not in it; without a majority everybody is suspected."""
    largest = max(groups, key=len)
    total = sum(map(len, groups))
    suspects = [asked for group in groups if group is not largest for asked in group]
    if 2 * len(largest) <= total:
        # One of each side against the other: nobody can say who is right.
        other = suspects[0]
        return other, [*largest, *suspects]
    return largest[0], suspects


def _oldest_value(asked: Asked) -> int:
    return asked.proof.oldest_value if asked.proof is not None else 0


def _first_difference(
    good: Asked,
    wrong: Asked,
    low: int,
    high: int,
    part: str,
    at: Callable[[Asked, int, str], str],
) -> Divergence:
    """The first epoch after `low` at which they differ, given that they do at `high`; by halving."""
    if wrong is good:
        return Divergence(wrong.node, high, part, exact=False)
    exact = True
    while high - low > 1:
        middle = (low + high) // 2
        try:
            same = at(good, middle, part) == at(wrong, middle, part)
        except LogTruncated:
            low, exact = middle, False
            continue
        except LockstepError:
            return Divergence(wrong.node, high, part, exact=False)
        low, high, exact = (middle, high, True) if same else (low, middle, exact)
    return Divergence(wrong.node, high, part, exact)


def _hash_at(asked: Asked, epoch: int, _part: str) -> str:
    if asked.proof is not None and epoch == asked.proof.epoch:
        return asked.proof.hash
    return read(LoggedEntry, asked.client.log_entries(epoch, epoch)[0]).hash


def _part_at(asked: Asked, epoch: int, part: str) -> str:
    return str(asked.client.metadata_digest(epoch).parts.get(part))


#: Characters of a value that `diff` shows to people: some lines of a terminal.
DIFF_CHARACTERS_MAX = 300


@click.group()
def metadata() -> None:
    """The one value that decides ownership and shape, at any epoch."""


@metadata.command()
@click.option("--epoch", type=int, help="Which epoch; the newest by default.")
@render.of_call
def show(epoch: int | None, call: render.Call) -> None:
    """Show the cluster metadata at an epoch."""
    answer = call.cluster().metadata(epoch)
    if call.as_json(answer, "metadata/1"):
        return
    render.document(answer)


@metadata.command()
@click.argument("one", metavar="E1", type=int)
@click.argument("other", metavar="E2", type=int)
@render.of_call
def diff(one: int, other: int, call: render.Call) -> None:
    """Show what changed from epoch E1 to epoch E2."""
    answer = call.cluster().metadata_diff(one, other)
    if call.as_json(answer, "metadata-diff/1"):
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
@render.of_call
def verify(first: int, call: render.Call) -> int:
    """Check that every node holds the same unbroken log and the same metadata, as far back as each keeps it.

    Each node computes the hash chain of its log anew, also of its archive, and the digest of its metadata at
    the newest epoch that all have, part by part. The first divergence is named: node, epoch, part.

    Exit code 0: all nodes agree. 1: a chain is broken or nodes differ. 6: what could be read agrees, but
    a node could not be asked or has stopped.
    """
    cluster = call.cluster()
    newest = int(cluster.status().get("epoch", 0))
    if not 1 <= first <= max(newest, 1):
        raise ConfigurationError(f"epochs {first} to {newest} are no range", hint="the first epoch is 1")
    found = compare(cluster, cluster.node_list(), first)
    rows = [asked.row() for asked in found.nodes]
    if call.output == "json":
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
