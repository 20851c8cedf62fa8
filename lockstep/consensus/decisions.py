"""The phases of one conditional request or serial read at its coordinator, as a table.

Invariant: a request that proposed something reaches its end through `applying`, or by losing sight of it;
what is answered without having written was judged right after a promise.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Final


class Phase(enum.StrEnum):
    #: A quorum is asked for promises, and what it holds.
    ASKING = "asking"
    #: What another request left in progress is decided first.
    FINISHING = "finishing"
    #: What was decided last is brought to a quorum.
    BRINGING = "bringing"
    #: The rows are judged; what became of an own proposal is.
    JUDGING = "judging"
    PROPOSING = "proposing"
    #: What was decided is applied at the level of the write.
    APPLYING = "applying"
    ENDED = "ended"


class Happened(enum.StrEnum):
    #: Another ballot was first, or the replicas changed.
    AGAIN = "again"
    IN_PROGRESS = "in progress"
    LACKING = "lacking"
    KNOWN = "known"
    PROPOSES = "proposes"
    ANSWERED = "answered"
    DECIDED = "decided"
    HELD = "held"


STEPS: Final[Mapping[Phase, Mapping[Happened, Phase]]] = {
    Phase.ASKING: {
        Happened.AGAIN: Phase.ASKING,
        Happened.IN_PROGRESS: Phase.FINISHING,
        Happened.LACKING: Phase.BRINGING,
        Happened.KNOWN: Phase.JUDGING,
    },
    Phase.FINISHING: {Happened.AGAIN: Phase.ASKING},
    Phase.BRINGING: {Happened.AGAIN: Phase.ASKING, Happened.KNOWN: Phase.JUDGING},
    Phase.JUDGING: {
        Happened.ANSWERED: Phase.ENDED,
        Happened.PROPOSES: Phase.PROPOSING,
        Happened.DECIDED: Phase.APPLYING,
    },
    Phase.PROPOSING: {Happened.AGAIN: Phase.ASKING, Happened.DECIDED: Phase.APPLYING},
    Phase.APPLYING: {Happened.AGAIN: Phase.APPLYING, Happened.HELD: Phase.ENDED},
    Phase.ENDED: {},
}


def mermaid() -> str:
    """The table as a Mermaid state diagram."""
    lines = ["stateDiagram-v2", f"  [*] --> {Phase.ASKING}"]
    for phase, steps in STEPS.items():
        lines += [f"  {phase} --> {after} : {happened}" for happened, after in steps.items()]
    return "\n".join([*lines, f"  {Phase.ENDED} --> [*]"]) + "\n"
