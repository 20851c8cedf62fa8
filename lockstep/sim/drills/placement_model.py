"""An obvious model of who owns what while operations run, from plain numbers and names.

Invariant: it shares no code with the product's placement or topology: replicas come from walking the circle
of tokens anew, an operation is what it does to the circle, and a stage is the pair of sides it names.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from typing import Final

#: stage -> (side that reads, side that writes): 0 the replicas before, 1 those after, 2 both.
BEFORE, AFTER, BOTH = 0, 1, 2
SIDES: Final = {
    "prepared": (BEFORE, BEFORE),
    "join_group0": (BEFORE, BEFORE),
    "commit_cdc_generation": (BEFORE, BEFORE),
    "write_both_read_old": (BEFORE, BOTH),
    "write_both_read_new": (AFTER, BOTH),
    "new_only": (AFTER, AFTER),
    "left_token_ring": (AFTER, AFTER),
    "cleanup": (AFTER, AFTER),
    "rebuilding": (BEFORE, BEFORE),
    "rollback_to_normal": (BEFORE, BEFORE),
}
#: kind -> the stage it begins with.
FIRST_STAGES: Final = {
    "bootstrap": "join_group0",
    "decommission": "prepared",
    "move": "prepared",
    "replace": "join_group0",
    "remove": "prepared",
    "rebuild": "rebuilding",
    "replication_change": "prepared",
}
#: kind -> state of its node while it runs.
RUNNING_STATES: Final = {
    "bootstrap": "bootstrapping",
    "decommission": "decommissioning",
    "move": "normal",
    "replace": "replacing",
    "remove": "removing",
    "rebuild": "rebuilding",
}


@dataclass(frozen=True)
class Place:
    dc: str
    rack: str


@dataclass
class Running:
    """An operation; `began` is the circle it found, `after` the one it leads to from the present one.

    A change of factors is about no node (0); it goes along `path`, and is at path[at] while a step lasts.
    """

    kind: str
    node: int
    tokens: tuple[int, ...]
    replaced: int
    began: Circle
    stage: str = ""
    after: Circle | None = None
    path: list[dict[str, int]] = field(default_factory=list)
    at: int = 0
    ahead: int = 1
    cancelled: bool = False
    stopped: bool = False


class Circle:
    """Token owners on the circle; an arc ends at each token and belongs to the walk that starts there."""

    def __init__(self, factors: dict[str, int], places: dict[int, Place], tokens: dict[int, int]) -> None:
        self.factors, self.places = factors, places
        self.ends = sorted(tokens)
        self.owners = [tokens[end] for end in self.ends]
        #: The nodes on the circle and their racks, by data centre, or all of them under "".
        self.nodes: dict[str, set[int]] = {dc: set() for dc in factors}
        for node in sorted(set(self.owners)):
            for dc in factors:
                if dc in ("", places[node].dc):
                    self.nodes[dc].add(node)
        self.spare = {
            dc: max(0, factor - len({places[node].rack for node in self.nodes[dc]}))
            for dc, factor in factors.items()
        }
        self._found: dict[int, tuple[int, ...]] = {}

    def replicas(self, token: int) -> tuple[int, ...]:
        """In the order of the walk."""
        if not self.ends:
            return ()
        start = bisect_left(self.ends, token) % len(self.ends)
        found = self._found.get(start)
        if found is None:
            found = self._found[start] = self._walk(start)
        return found

    def _walk(self, start: int) -> tuple[int, ...]:
        """Take each node that is met and that its data centre can still use, until all have enough."""
        chosen: dict[str, list[int]] = {dc: [] for dc in self.factors}
        enough = {dc: min(factor, len(self.nodes[dc])) for dc, factor in self.factors.items()}
        order: list[int] = []
        for at in range(len(self.owners)):
            node = self.owners[(start + at) % len(self.owners)]
            for dc, taken in chosen.items():
                if node in self.nodes[dc] and len(taken) < enough[dc] and self._usable(dc, taken, node):
                    taken.append(node)
                    order.append(node)
            if len(order) == sum(enough.values()):
                break
        return tuple(order)

    def _usable(self, dc: str, taken: list[int], node: int) -> bool:
        """One of each rack, and others of a rack only as far as racks are too few."""
        if node in taken:
            return False
        if not dc:
            return True
        used = [self.places[other].rack for other in taken]
        return self.places[node].rack not in used or len(used) - len(set(used)) < self.spare[dc]


@dataclass
class Model:
    """`factors` by data centre, or under "" for all of them; `tokens` maps a token to its owner."""

    factors: dict[str, int]
    places: dict[int, Place] = field(default_factory=dict)
    states: dict[int, str] = field(default_factory=dict)
    tokens: dict[int, int] = field(default_factory=dict)
    running: dict[int, Running] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.now = self._circle(self.tokens)
        #: What `touching` found since anything last changed.
        self._touched: dict[int, list[int]] = {}

    def _circle(self, tokens: dict[int, int]) -> Circle:
        return Circle(self.factors, self.places, tokens)

    def add(self, node: int, place: Place, tokens: tuple[int, ...] = ()) -> None:
        self._touched = {}
        self.places[node] = place
        self.states[node] = "normal" if tokens else "none"
        self.tokens.update(dict.fromkeys(tokens, node))
        self.now = self._circle(self.tokens)

    def begin(self, operation_id: int, kind: str, node: int, tokens: tuple[int, ...], replaced: int) -> None:
        self._touched = {}
        running = Running(kind, node, tokens, replaced, self.now)
        self.running[operation_id] = running
        self.states[node] = RUNNING_STATES[kind]
        running.stage = FIRST_STAGES[kind]
        running.after = self._circle(self._tokens_after(running))

    def _tokens_after(self, running: Running) -> dict[int, int]:
        tokens = dict(self.tokens)
        if running.kind == "rebuild":
            return tokens
        gone = (running.node, running.replaced)
        kept = {token: owner for token, owner in tokens.items() if owner not in gone}
        if running.kind == "replace":
            taken = [token for token, owner in tokens.items() if owner == running.replaced]
            return {**kept, **dict.fromkeys(taken, running.node)}
        return {**kept, **dict.fromkeys(running.tokens, running.node)}

    def begin_change(self, operation_id: int, factors: dict[str, int]) -> None:
        """The factors become others, one by one: first those that grow, then those that shrink."""
        self._touched = {}
        running = Running("replication_change", 0, (), 0, self.now)
        running.path = [dict(self.factors)]
        for sign in (1, -1):
            for dc in sorted(factors):
                while (factors[dc] - running.path[-1][dc]) * sign > 0:
                    running.path.append({**running.path[-1], dc: running.path[-1][dc] + sign})
        self.running[operation_id] = running
        running.stage = FIRST_STAGES[running.kind]
        running.after = Circle(running.path[1], self.places, self.tokens)

    def cancel(self, operation_id: int) -> None:
        """A second time, on the way back: it ends after its present step, wherever that is."""
        running = self.running[operation_id]
        running.stopped = running.ahead < 0
        running.cancelled = True

    def enter(self, operation_id: int, stage: str) -> None:
        self._touched = {}
        running = self.running[operation_id]
        if running.path and stage == FIRST_STAGES[running.kind]:
            self._end_step(running)
            running.after = Circle(running.path[running.at + running.ahead], self.places, self.tokens)
        running.stage = stage

    def _end_step(self, running: Running) -> None:
        """The factors that the step led to hold, unless it was taken back."""
        if running.stage != "rollback_to_normal":
            running.at += running.ahead
        running.ahead = -1 if running.cancelled else 1
        self.factors = running.path[running.at]
        self.now = self._circle(self.tokens)

    def factors_read(self) -> dict[str, int]:
        """Factors of the replicas that are read."""
        for running in self.running.values():
            if running.path and SIDES[running.stage][0] == AFTER:
                return running.path[running.at + running.ahead]
        return self.factors

    def end(self, operation_id: int) -> None:
        self._touched = {}
        running = self.running.pop(operation_id)
        if running.path:
            self._end_step(running)
            assert running.stopped or running.at == (0 if running.cancelled else len(running.path) - 1), (
                "it ends at an end"
            )
            return
        if running.stage == "rollback_to_normal":
            self.states[running.node] = "none" if running.kind in ("bootstrap", "replace") else "normal"
            return
        self.tokens = self._tokens_after(running)
        self.states[running.node] = "left" if running.kind in ("decommission", "remove") else "normal"
        if running.replaced:
            self.states[running.replaced] = "left"
        self.now = self._circle(self.tokens)
        for other in self.running.values():
            other.after = self._circle(self._tokens_after(other))

    def touching(self, token: int) -> list[int]:
        """Operations that change the replicas of the token, or hold still those that they found."""
        found = self._touched.get(token)
        if found is None:
            found = self._touched[token] = self._find_touching(token)
        return found

    def _find_touching(self, token: int) -> list[int]:
        before = self.now.replicas(token)
        found = []
        for operation_id, running in self.running.items():
            assert running.after is not None
            if running.kind == "rebuild":
                found.extend([operation_id] * (running.node in running.began.replicas(token)))
            elif (after := running.after.replicas(token)) != before and set(after) != set(before):
                found.append(operation_id)
        return found

    def reordered(self, token: int) -> list[int]:
        """Operations after which the token's replicas come in another order, or are counted otherwise."""
        before = self.now.replicas(token)
        return [
            operation_id
            for operation_id, running in self.running.items()
            if running.after is not None and (running.path or running.after.replicas(token) != before)
        ]

    def readers_writers(self, token: int) -> tuple[tuple[int, ...], frozenset[int]]:
        """Readers in order and all writers; the token is touched by one operation at most."""
        before = self.now.replicas(token)
        touching = self.touching(token) or self.reordered(token)
        if not touching:
            return before, frozenset(before)
        running = self.running[touching[0]]
        assert running.after is not None
        after = running.after.replicas(token)
        reads, writes = SIDES[running.stage]
        both = {BEFORE: before, AFTER: after, BOTH: before + after}
        return both[reads], frozenset(both[writes])

    def owning(self, dc: str, token: int) -> int:
        """Nodes that could read the token's range, in a data centre or, with "", anywhere."""
        circle = self.now
        for operation_id in self.touching(token):
            running = self.running[operation_id]
            if SIDES[running.stage][0] == AFTER and running.after is not None:
                circle = running.after
        return len(circle.nodes[dc])

    def leaves_enough(self, node: int) -> bool:
        """Whether every factor is met without the node and without all that are about to leave."""
        staying = [n for n, s in self.states.items() if s in ("normal", "rebuilding") and n != node]
        home = self.places[node].dc
        for dc, factor in self.factors.items():
            if dc in ("", home) and sum(dc in ("", self.places[n].dc) for n in staying) < factor:
                return False
        return bool(staying)
