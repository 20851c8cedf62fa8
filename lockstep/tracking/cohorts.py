"""What some replicas hold and others, absent for long, do not: ids by who holds them.

While a replica is away, all that the others hold becomes a cohort of those others: one set of ids of which
the single mutations are no longer kept, for its data lies apart. The ids of a cohort are of dense logs, so
they are a few runs however long the outage is; there are as many cohorts as there were sets of live replicas.
Who was away takes the data of each cohort whose ids it lacks, and is then one of its holders. When all are,
the cohort is over and its ids are reconciled. A cohort moves no bound of time: its tombstones stay.

Invariant: an id is in one cohort at most; no two cohorts have the same holders; none is held by all.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import combinations

import msgspec

from lockstep.tracking.held import NOTHING, Held, all_of
from lockstep.tracking.limits import COHORTS_MAX


def are_enough(there: frozenset[int], replicas: frozenset[int], near: frozenset[int]) -> bool:
    """Whether those that are there may let go of single mutations: each majority of all replicas, or each one
    of those in a data centre, has one of them. What fewer hold, no answer could show before others got it."""
    return any(group and len(there & group) > len(group) // 2 for group in (replicas, near))


class Cohort(msgspec.Struct, frozen=True, array_like=True, order=True):
    holders: tuple[int, ...]
    ids: Held

    def title(self) -> str:
        return f"cohort of {', '.join(map(str, self.holders))} with {self.ids.count} ids"


class Cohorts(msgspec.Struct, frozen=True, array_like=True):
    """`groups`, in order of holders; `participants` are all replicas of the range."""

    participants: tuple[int, ...]
    groups: tuple[Cohort, ...] = ()

    @property
    def ids(self) -> Held:
        return all_of(group.ids for group in self.groups)

    def collapse(self, live: Iterable[int], told: Mapping[int, Held]) -> tuple[Cohorts, Held]:
        """With all ids that each of `live` holds, and those of them that nobody lacks.

        An absent replica may hold some of them as well: they go to a cohort that it holds too, so that it is
        never sent what it has.
        """
        members = sorted(set(live))
        assert set(members) <= set(self.participants), members
        if not members:
            return self, NOTHING
        common = told.get(members[0], NOTHING)
        for node in members[1:]:
            common = common.intersection(told.get(node, NOTHING))
        parts = [(tuple(members), common.difference(self.ids))]
        for node in sorted(set(self.participants) - set(members)):
            has = told.get(node, NOTHING)
            parts = [
                part
                for holders, ids in parts
                for part in (
                    (holders, ids.difference(has)),
                    (tuple(sorted((*holders, node))), ids.intersection(has)),
                )
                if part[1]
            ]
        found = {group.holders: group.ids for group in self.groups}
        for holders, ids in parts:
            found[holders] = found.get(holders, NOTHING).union(ids)
        return self._without_whole(found)

    def taken(self, node: int, held: Held) -> tuple[Cohorts, Held]:
        """After `node` told what it holds: cohorts that it holds whole are its own too; with ids that
        nobody lacks any more."""
        found: dict[tuple[int, ...], Held] = {}
        for group in self.groups:
            holders = group.holders
            if node not in holders and held.covers(group.ids):
                holders = tuple(sorted((*holders, node)))
            found[holders] = found.get(holders, NOTHING).union(group.ids)
        return self._without_whole(found)

    def lacking(self, held: Held) -> tuple[Cohort, ...]:
        """The cohorts whose data a replica with these ids is to take."""
        return tuple(group for group in self.groups if not held.covers(group.ids))

    def merged(self, other: Cohorts) -> tuple[Cohorts, Held]:
        """With what another replica knows of cohorts, whose holders hold what it says: and with ids that, as
        follows from both, nobody lacks."""
        if other.groups == self.groups or not other.groups:
            return self, NOTHING
        holders_of: list[tuple[set[int], Held]] = []
        for group in (*self.groups, *other.groups):
            rest, holders = group.ids, set(group.holders)
            split: list[tuple[set[int], Held]] = []
            for known, ids in holders_of:
                both = ids.intersection(rest)
                split += ((known, ids.difference(both)), (known | holders, both))
                rest = rest.difference(both)
            holders_of = [one for one in (*split, (holders, rest)) if one[1]]
        found: dict[tuple[int, ...], Held] = {}
        for known, ids in holders_of:
            key = tuple(sorted(known))
            found[key] = found.get(key, NOTHING).union(ids)
        return self._without_whole(found)

    def _without_whole(self, found: dict[tuple[int, ...], Held]) -> tuple[Cohorts, Held]:
        whole = found.pop(tuple(self.participants), NOTHING)
        groups = tuple(Cohort(holders, ids) for holders, ids in sorted(found.items()) if ids)
        return Cohorts(self.participants, groups), whole

    def validate(self) -> None:
        assert list(self.participants) == sorted(set(self.participants)), self.participants
        assert len(self.groups) <= COHORTS_MAX, len(self.groups)
        holders = [group.holders for group in self.groups]
        assert holders == sorted(set(holders)), holders
        for group in self.groups:
            assert group.ids and group.holders, group.title()
            assert set(group.holders) < set(self.participants), group.title()
        for one, other in combinations(self.groups, 2):
            assert not one.ids.intersection(other.ids), f"{one.title()} and {other.title()} share ids"
