"""Runs the transcripts of members that agree: text files of what happens and what comes of it.

A block is one line of a script (see `play`), `----`, what was said and written, an empty line.
LOCKSTEP_REWRITE_TRANSCRIPTS=1 writes what happened into the files instead of comparing; read the diff before
committing it. What each failure must end in stands in the tests below besides.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from .play import Table

DIRECTORY = Path(__file__).parent / "transcripts"
NAMES = sorted(path.stem for path in DIRECTORY.glob("*.txt"))


def blocks(text: str) -> list[tuple[str, str]]:
    """Lines that begin with # before the first block say what the case is of."""
    body = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
    found = []
    for block in body.strip().split("\n\n"):
        line, _, said = block.partition("\n----\n")
        found.append((line.strip(), said.strip()))
    return found


def played(name: str) -> Table:
    path = DIRECTORY / f"{name}.txt"
    text = path.read_text()
    table = Table()
    happened = [(line, table.play(line)) for line, _ in blocks(text)]
    if os.environ.get("LOCKSTEP_REWRITE_TRANSCRIPTS"):
        head = "".join(f"{line}\n" for line in text.splitlines() if line.startswith("#"))
        path.write_text(head + "\n" + "\n\n".join(f"{line}\n----\n{said}" for line, said in happened) + "\n")
    else:
        assert happened == blocks(text)
    return table


@pytest.mark.parametrize("name", NAMES)
def test_transcript(name: str) -> None:
    table = played(name)
    rings = [member.ring for member in table.members.values()]
    chain = {ring.sequence: ring.fingerprint for ring in rings}
    assert all(chain[ring.sequence] == ring.fingerprint for ring in rings), "one ring of a sequence"


def test_there_is_a_transcript_of_every_failure() -> None:
    assert len(NAMES) >= 20


def outcome(name: str) -> tuple[set[int], set[str]]:
    """Sequences of the rings of who is up in the end, and what they hold."""
    table = played(name)
    standing = [member.standing for member in table.members.values()]
    held = {one.pending.op for one in standing if one.pending is not None}
    return {one.ring.sequence for one in standing}, held


@pytest.mark.parametrize(
    ("name", "sequences", "held"),
    [
        ("unanimous_commits", {2}, set()),
        ("unanimous_two_initiators", {1}, set()),
        ("unanimous_initiator_cut_before_propose", {1}, set()),
        ("unanimous_initiator_cut_after_some", {1}, set()),
        ("unanimous_initiator_cut_after_all", {1, 2}, {"n1/1/1"}),
        ("unanimous_initiator_crashes_undecided", {1}, set()),
        ("unanimous_initiator_crashes_decided", {2}, set()),
        ("unanimous_member_cut_before_propose", {1}, set()),
        ("unanimous_member_cut_after_accept", {2}, set()),
        ("unanimous_member_cut_after_commit", {3}, set()),
        ("unanimous_member_restarts_promised", {2}, set()),
        ("unanimous_dead_member_cannot_be_removed", {1}, set()),
        ("quorum_two_initiators", {2}, set()),
        ("quorum_initiator_dies_after_all", {2}, set()),
        ("quorum_initiator_dies_after_one", {2}, set()),
        ("quorum_abort_ends_the_ring", {2}, set()),
        ("quorum_abort_loses_to_hidden_commit", {2}, set()),
        ("quorum_dead_members_removed_at_once", {3}, set()),
        ("quorum_stale_member_comes_up", {2}, set()),
        ("quorum_restarts_with_its_vote", {2}, set()),
    ],
)
def test_each_failure_ends_as_it_must(name: str, sequences: set[int], held: set[str]) -> None:
    assert outcome(name) == (sequences, held)


def test_where_all_must_accept_an_abort_races_the_hidden_commit_of_a_newcomer() -> None:
    """Scenario 29: two changes are committed on one ring, and members raise the alarm as that shows."""
    table = played("unanimous_abort_races_commit_of_newcomer")
    text = (DIRECTORY / "unanimous_abort_races_commit_of_newcomer.txt").read_text()
    assert "n4/1/1 committed" in text and "n1/1/1 committed" in text and "ALARM" in text
    rings = {member.ring.fingerprint for member in table.members.values()}
    assert len(rings) == 1 and table.members["n1"].ring.sequence == 2, "they merge: neither is the ring alone"


def test_a_reply_that_no_initiator_waits_for_changes_nothing() -> None:
    table = Table()
    for line in ("ring quorum 3", "node n4", "propose n4 join n4", "go"):
        table.play(line)
    before = {name: member.ring for name, member in table.members.items()}
    table.play("gossip n1 n2")
    table.play("go")
    assert {name: member.ring for name, member in table.members.items()} == before
