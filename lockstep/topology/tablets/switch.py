"""The entry by which the balancer is switched on and off.

Invariant: it changes what is moved for balance, never what is emptied, or built anew.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.log.registry import EntryKind
from lockstep.metadata.tablets import TABLETS, Tablets
from lockstep.metadata.transformations import refuse_before_initialize
from lockstep.values.errors import Rejected


class SetBalancing(msgspec.Struct, frozen=True, array_like=True):
    """Have tablets moved to even out the load, or not: those of one tablet group, or with group 0 all."""

    is_on: bool
    group: int = 0

    def apply(self, cluster: ClusterMetadata, epoch: int) -> ClusterMetadata:
        refuse_before_initialize(cluster)
        tablets = cluster.tablets
        if not self.group:
            if tablets.is_balanced is self.is_on:
                raise Rejected(f"the balancer is {_word(self.is_on)} already")
            return cluster.changed(TABLETS.set(Tablets(tablets.by_group, self.is_on)))
        group = tablets.by_group.get(self.group)
        if group is None:
            raise Rejected(f"there is no tablet group {self.group}")
        if group.head.is_balanced is self.is_on:
            name = f"{group.head.keyspace}.{group.head.table}"
            raise Rejected(f"the balancer is {_word(self.is_on)} for {name} already")
        head = msgspec.structs.replace(group.head, is_balanced=self.is_on)
        changed = msgspec.structs.replace(group, head=head)
        return cluster.changed(TABLETS.set(tablets.with_groups((changed,))))


def _word(is_on: bool) -> str:
    return "on" if is_on else "off"


KINDS: Final[Mapping[int, type[Any]]] = {EntryKind.SET_BALANCING: SetBalancing}
