"""What a run of one seed gave."""

from __future__ import annotations

import msgspec


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
