"""What nodes say to each other when the groups are repaired."""

from __future__ import annotations

import msgspec

from lockstep.metadata.log.entries import LogEntry
from lockstep.recovery.fences import Target
from lockstep.recovery.plan import ResetPlan


class AskSurvey(msgspec.Struct, frozen=True, array_like=True):
    """Say of yourself what a repair has to know."""


class AskTail(msgspec.Struct, frozen=True, array_like=True):
    """What does your log have above this epoch?"""

    epoch: int


class Tail(msgspec.Struct, frozen=True, array_like=True):
    entries: tuple[LogEntry, ...]


class Prepare(msgspec.Struct, frozen=True, array_like=True):
    """Write the plan down, to carry it out once that is decided."""

    plan: ResetPlan


class Decide(msgspec.Struct, frozen=True, array_like=True):
    """The attempt was decided, or (`go` false) given up."""

    attempt: str
    go: bool


class Migrate(msgspec.Struct, frozen=True, array_like=True):
    """Go to the repaired cluster, or (`dry_run`) say whether you could. `actor`: who asked for it. `parks`:
    who has diverged is only read from, from then on."""

    target: Target
    dry_run: bool = False
    actor: str = ""
    parks: bool = False


class Migrated(msgspec.Struct, frozen=True, array_like=True):
    """`refused`: why the node stays where it is; empty when it goes. `diverged_at` and the hashes: see
    `fences.Fenced`. `waived`: classes of the entries that only this node has, and gives up. `zombie`: it is
    only read from, from now on."""

    node: int
    epoch: int
    refused: str = ""
    diverged_at: int = 0
    own_hash: bytes = b""
    other_hash: bytes = b""
    waived: str = ""
    zombie: bool = False


class Restart(msgspec.Struct, frozen=True, array_like=True):
    """Begin another life in your process, so that your members of the groups start anew from their files.
    `actor`: who asked for it."""

    actor: str = ""


class Done(msgspec.Struct, frozen=True, array_like=True):
    """It is durable at `node`."""

    node: int
