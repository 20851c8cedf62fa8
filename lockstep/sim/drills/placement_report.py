"""`lockstep sim placements`: drills for every setting, flaws to plant in either side, and the report of it.

Invariant: a run in which some kind of operation never ended well compared too little and fails, as does a
planted flaw that goes unseen.
"""

from __future__ import annotations

import contextlib
import sys
from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec

from lockstep.metadata.directory import NodeState
from lockstep.metadata.operations import Stage
from lockstep.placement import deltas, strategies
from lockstep.placement.deltas import changes
from lockstep.placement.strategies import Center, Seats, seats
from lockstep.sim.drills.placement_drill import Drill, Setting
from lockstep.sim.drills.placement_model import Circle, Model
from lockstep.sim.plant import replaced
from lockstep.topology import planning, replication_change
from lockstep.topology.kinds import ring
from lockstep.topology.kinds.registry import KINDS
from lockstep.topology.stages import RANGE_MOVEMENT, Side, StageRow
from lockstep.values.errors import ConfigurationError

#: Lines of findings printed; the rest is counted.
_SHOWN_MAX = 5


class Flaw(msgspec.Struct, frozen=True):
    """`changes` are (owner, name, what is there instead) as `replaced` takes them."""

    harm: str
    changes: tuple[tuple[Any, str, Any], ...] = ()


def _nobody_wraps(self: Circle, start: int) -> tuple[int, ...]:
    order = list(dict.fromkeys(self.owners[start:]))
    return tuple(order[: sum(self.factors.values())])


def _rows_changed(stage: Stage, **change: Any) -> tuple[tuple[Any, str, Any], ...]:
    """Every kind with another row of this stage."""

    def changed(rows: tuple[StageRow, ...]) -> tuple[StageRow, ...]:
        return tuple(msgspec.structs.replace(r, **change) if r.stage is stage else r for r in rows)

    return (
        *(
            # Bodies look their kind up where it is defined.
            (
                sys.modules[kind.body.__module__],
                "KIND",
                msgspec.structs.replace(kind, stages=changed(kind.stages)),
            )
            for kind in KINDS
        ),
        (replication_change, "RANGE_MOVEMENT", changed(RANGE_MOVEMENT)),
    )


def _flaws() -> dict[str, Flaw]:
    reads_old = _rows_changed(Stage.WRITE_BOTH_READ_NEW, reads=Side.OLD)
    return {
        "sound": Flaw("nothing"),
        "model_never_wraps": Flaw(
            "the model's walk stops at the last token", ((Circle, "_walk", _nobody_wraps),)
        ),
        "model_forgets_ends": Flaw(
            "the model keeps a departed node's tokens",
            ((Model, "_tokens_after", lambda self, _: self.tokens),),
        ),
        "racks_ignored": Flaw(
            "the product takes any rack", ((strategies, "seats", _rackless), (deltas, "seats", _rackless))
        ),
        "last_range_forgotten": Flaw(
            "the product leaves out the last range that changes",
            ((planning, "changes", lambda *given: changes(*given)[:-1]),),
        ),
        "reads_move_late": Flaw("reads move one stage late", reads_old),
        "locks_ignored": Flaw(
            "overlapping operations begin",
            (
                (planning, "_refuse_held", lambda *_: None),
                (planning, "_outcomes", lambda _: iter(())),
            ),
        ),
        "replaced_stays": Flaw(
            "the replaced node keeps its place",
            ((ring, "_end_directory", _without_departing),),
        ),
        "factors_leap": Flaw(
            "factors change by more than one at once",
            ((replication_change, "replication_steps", _leap),),
        ),
        "factors_ignored": Flaw("too few nodes may stay", ((ring, "check_leave", lambda *_: None),)),
    }


def _leap(before: Any, after: Any, *_: Any) -> Any:
    return before, after


def _rackless(replication: Any, circle: Any) -> Seats:
    """Every node as if it stood in a rack of its own."""
    seated = seats(replication, circle)
    centers = {dc: Center(center.factor, 0) for dc, center in seated.centers.items()}
    return Seats(centers, {n: (seat[0], n) for n, seat in seated.of.items()}, seated.eligible)


def _without_departing(directory: Any, operation: Any, epoch: int) -> Any:
    node = directory.by_id[operation.node]
    left = msgspec.structs.replace(node, state=NodeState.NORMAL, tokens=node.tokens, epoch=epoch)
    return directory.with_node(left)


FLAWS = _flaws()


class Verdict(msgspec.Struct, frozen=True):
    """`grown`: runs that reached the nodes they were to grow to; `at_once`: the most operations at once."""

    settings: tuple[Setting, ...]
    runs: int
    grown: int
    nodes_max: int
    at_once: int
    did: dict[str, int]
    found: tuple[str, ...]

    @property
    def missing(self) -> tuple[str, ...]:
        """Kinds of operations of which none came to its end."""
        return tuple(kind.name for kind in KINDS if not self.did.get(f"{kind.name} ended"))

    @property
    def holds(self) -> bool:
        return not self.found and not self.missing and self.grown == self.runs


def settings(
    nodes_max: int,
    operations: int,
    factors: Sequence[int] = (2, 3, 5),
    dcs: Sequence[int] = (0, 1, 3),
    tokens: Sequence[int] = (1, 16),
    concurrency: Sequence[int] = (1, 3, 5),
) -> tuple[Setting, ...]:
    """Every combination."""
    return tuple(
        Setting(dc, factor, count, at_once, nodes_max, operations)
        for dc in dcs
        for factor in factors
        for count in tokens
        for at_once in concurrency
    )


def check(seed: int, seeds: int, chosen: Sequence[Setting], plant: str = "sound") -> Verdict:
    """Run every setting with each seed; the first finding of a run ends it."""
    flaw = FLAWS.get(plant)
    if flaw is None:
        raise ConfigurationError(f"there is no flaw {plant!r}", hint=f"one of: {', '.join(FLAWS)}")
    did: Counter[str] = Counter()
    found: list[str] = []
    runs = grown = largest = at_once = 0
    with replaced(*flaw.changes) if flaw.changes else contextlib.nullcontext():
        for number in range(seed, seed + seeds):
            for setting in chosen:
                drill = Drill(setting, number)
                drill.run()
                runs += 1
                did += drill.did
                largest = max(largest, drill.nodes_reached)
                at_once = max(at_once, drill.at_once)
                grown += drill.nodes_reached >= setting.nodes_max
                found.extend(f"seed {number}, {setting.name}: {line}" for line in drill.found[:1])
    return Verdict(tuple(chosen), runs, grown, largest, at_once, dict(did), tuple(found))


def text_of(verdict: Verdict, elapsed_s: float) -> str:
    ended = ", ".join(f"{verdict.did.get(f'{kind.name} ended', 0):,} {kind.name}" for kind in KINDS)
    lines = [
        f"{verdict.runs} runs, {verdict.did.get('steps compared', 0):,} steps compared with the model, "
        f"{elapsed_s:.1f} s",
        f"reached: {_reached(verdict)}",
        f"ended: {ended}; {_cancelled(verdict)}",
    ]
    lines.extend(f"violation: {line}" for line in verdict.found[:_SHOWN_MAX])
    if verdict.found:
        lines.append(f"{len(verdict.found):,} violations")
    elif verdict.missing:
        lines.append(f"vacuous: nothing ended of {', '.join(verdict.missing)}")
    elif verdict.grown < verdict.runs:
        lines.append(f"{verdict.runs - verdict.grown} runs did not grow to the nodes they were to have")
    else:
        lines.append("every placement, held range and node state is what the model says")
    return "\n".join(lines)


def _reached(verdict: Verdict) -> str:
    chosen = verdict.settings
    dcs = ", ".join(str(count) if count else "simple" for count in sorted({one.dcs for one in chosen}))
    factors, tokens = (
        ", ".join(map(str, sorted(values)))
        for values in ({one.factor for one in chosen}, {one.tokens for one in chosen})
    )
    return (
        f"{verdict.nodes_max} nodes ({verdict.grown} of {verdict.runs} runs grew to all they were to have), "
        f"{verdict.at_once} operations at once; data centres {dcs}; factors {factors}; tokens {tokens}"
    )


def _cancelled(verdict: Verdict) -> str:
    cancelled = verdict.did.get("CancelOperation done", 0)
    ended = sum(verdict.did.get(f"{kind.name} ended", 0) for kind in KINDS)
    return f"{cancelled:,} of them cancelled ({100 * cancelled / max(1, ended):.1f}%)"
