"""What a run of one seed gave."""

from __future__ import annotations

import traceback
from collections.abc import Sequence

import msgspec

from lockstep.sim.checkers.violation import Violation
from lockstep.sim.runtime.world import RunError


class SeedResult(msgspec.Struct, frozen=True, kw_only=True):
    """What one seed gave; `violation` is empty when everything held."""

    scenario: str
    seed: int
    violation: str = ""
    invariant: str = ""
    digest: str = ""
    events: int = 0
    virtual_s: float = 0.0
    cpu_s: float = 0.0
    requests: int = 0
    acknowledged: int = 0
    judged: int = 0
    inspected: int = 0
    epochs: int = 0
    effects: dict[str, int] = {}
    facts: dict[str, int] = {}
    probes: dict[str, int] = {}
    faults: tuple[str, ...] = ()


def classified(errors: Sequence[RunError], found: AssertionError) -> tuple[str, str]:
    """Which invariant an assertion of a run stands for, and its text: the first error of the world tells."""
    if not errors:
        return "HARNESS", "".join(traceback.format_exception(found))
    first = errors[0]
    if isinstance(first.error, Violation):
        return first.error.invariant, str(first)
    text = str(first)
    if first.error is not None:
        text += "\n" + "".join(traceback.format_exception(first.error))
    return first.kind.upper(), text
