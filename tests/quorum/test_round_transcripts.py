"""Runs the transcripts of rounds: text files of events and the effects that each must have.

A block is one event line, `----`, the expected effects, an empty line. LOCKSTEP_REWRITE_TRANSCRIPTS=1 writes
what happened into the files instead of comparing; read the diff before committing it.

    PLAN is NODE[/DC] ... need COUNT|DC=COUNT,... [at EPOCH since EPOCH]   at: made; since: what matters to it

    write|read|conditional|batches|counter PLAN [holding NODE@EPOCH]   a round of that policy
    planned | paused | confirmed | learned [PLAN]       the newest plan; the present one unless it is given
    begin [NODE ...] | answered NODE [at EPOCH] | refused NODE | failed NODE ERROR [EPOCH]
    withdrawn NODE ... | slow [COUNT] | again | not_learned | expired | stop
    show            what the round knows
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lockstep.quorum import round
from lockstep.quorum.round import Ask, Effects, Ended, Learn, Policy, Retry, Round, Target
from lockstep.values import errors
from lockstep.values.ids import NodeId

from .quorums import Made

DIRECTORY = Path(__file__).parent / "transcripts"
POLICIES = {one.name: one for one in vars(round).values() if isinstance(one, Policy)}


def plan_of(words: list[str]) -> Made:
    at = words.index("need")
    nodes = [(int(word.partition("/")[0]), word.partition("/")[2]) for word in words[:at]]
    needs = []
    for word in words[at + 1].split(","):
        dc, _, count = word.rpartition("=")
        needs.append((dc, int(count)))
    rest = words[at + 2 :]
    named = dict(zip(rest[::2], map(int, rest[1::2]), strict=True))
    return Made(nodes, needs, named.get("at", 5), named.get("since", 3))


def error_of(words: list[str]) -> errors.LockstepError:
    kind = getattr(errors, words[0])
    return kind(int(words[1])) if words[1:] else kind("it says")  # type: ignore[no-any-return]


def shown(effects: Effects) -> str:
    lines = []
    for effect in effects:
        if isinstance(effect, Ask):
            lines.append(f"ask {' '.join(str(target.node) for target in effect.targets)}: {effect.why}")
        elif isinstance(effect, Retry):
            lines.append(f"retry after {effect.after_ms} ms")
        elif isinstance(effect, Learn):
            lines.append(f"learn {effect.epoch} from {effect.source.node}")
        else:
            lines.append(f"ended: {effect.end.value}" if isinstance(effect, Ended) else "check")
    return "\n".join(lines) or "nothing"


class Stage:
    """One round, and what was said of it."""

    def __init__(self) -> None:
        self.round: Any = None

    def play(self, line: str) -> str:
        name, *words = line.split()
        if name in POLICIES:
            holders: dict[NodeId, int] = {}
            if "holding" in words:
                at = words.index("holding")
                for word in words[at + 1 :]:
                    node, _, epoch = word.partition("@")
                    holders[NodeId(int(node))] = int(epoch)
                words = words[:at]
            self.round = Round(POLICIES[name], plan_of(words), None, holders)
            return "nothing"
        if name == "show":
            return self._state()
        effects = EVENTS[name](self, words) or ()
        self.round.validate()
        return shown(effects)

    def plan(self, words: list[str]) -> Any:
        """The present one where none is given."""
        return plan_of(words) if words else self.round.plan

    def target(self, word: str) -> Target:
        known = {str(target.node): target for target in self.round.order}
        return known.get(word) or Target(NodeId(int(word)), (f"n{word}", 1), "")

    def targets(self, words: list[str]) -> list[Target]:
        return [self.target(word) for word in words]

    def _state(self) -> str:
        found = self.round
        named = {
            "accepted": [f"{node}@{epoch}" for node, epoch in found.accepted.items()],
            "outstanding": found.outstanding,
            "failures": [f"{node}:{type(error).__name__}" for node, error in found.failures.items()],
            "refusers": found.refusers,
            "lacking": [target.node for target in found.lacking()],
            "plans": [found.plans_made],
        }
        said = [f"{name} {' '.join(map(str, values))}" for name, values in named.items() if values]
        said += [word for word in ("is_learning", "is_waiting") if getattr(found, word)]
        return "\n".join([*said, f"end {found.end.value if found.end else '-'}"])


def _answered(stage: Stage, words: list[str]) -> Effects:
    epoch = int(words[2]) if words[1:] else stage.round.plan.epoch
    found: Effects = stage.round.answered(NodeId(int(words[0])), epoch)
    return found


EVENTS: dict[str, Callable[[Stage, list[str]], Any]] = {
    "begin": lambda stage, words: stage.round.begin(stage.targets(words) if words else None),
    "answered": _answered,
    "refused": lambda stage, words: stage.round.refused(NodeId(int(words[0]))),
    "failed": lambda stage, words: stage.round.failed(stage.target(words[0]), error_of(words[1:])),
    "withdrawn": lambda stage, words: stage.round.withdrawn(stage.targets(words)),
    "slow": lambda stage, words: stage.round.slow(*map(int, words)),
    "again": lambda stage, _: stage.round.again(),
    "planned": lambda stage, words: stage.round.planned(stage.plan(words)),
    "paused": lambda stage, words: stage.round.planned(stage.plan(words), paused=True),
    "confirmed": lambda stage, words: stage.round.confirmed(stage.plan(words)),
    "learned": lambda stage, words: stage.round.learned(stage.plan(words)),
    "not_learned": lambda stage, _: stage.round.not_learned(),
    "expired": lambda stage, _: stage.round.expired(),
    "stop": lambda stage, _: stage.round.stop(),
}


@pytest.mark.parametrize("path", sorted(DIRECTORY.glob("*.txt")), ids=lambda path: path.stem)
def test_a_transcript_holds(path: Path) -> None:
    stage, text = Stage(), path.read_text()
    about, *blocks = text.rstrip("\n").split("\n\n")
    assert about.startswith("# "), "a transcript says what it is about"
    played = [about]
    for block in blocks:
        line = block.split("\n", 1)[0]
        played.append(f"{line}\n----\n{stage.play(line)}")
    found = "\n\n".join(played) + "\n"
    if os.environ.get("LOCKSTEP_REWRITE_TRANSCRIPTS"):
        path.write_text(found)
    assert found == text


def test_every_event_and_every_policy_is_in_a_transcript() -> None:
    lines = {
        block.split()[0]
        for path in DIRECTORY.glob("*.txt")
        for block in path.read_text().split("\n\n")
        if not block.startswith("#")
    }
    assert {*EVENTS, *POLICIES, "show"} == lines
