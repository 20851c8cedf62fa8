"""Whether the cluster has a log, as a part of the metadata: by which mode its nodes agree when it has none,
and how far it is on its way from the one to the other.

Invariant: a cluster without a log has no voters: the members of its ring agree on each change of the
metadata, in the way that the mode names. Founding sets the mode; the entry that builds the log ends it, and a
repair after the log was lost may begin another one. While an upgrade runs nothing else changes."""

from __future__ import annotations

import enum
from typing import Final

import msgspec

from lockstep.metadata.part import Part, struct_part
from lockstep.values.ids import NodeId

#: All members must accept a change; a majority does, under ballots.
UNANIMOUS: Final = "unanimous"
QUORUM: Final = "quorum"
RING_MODES: Final = (UNANIMOUS, QUORUM)


class UpgradeState(enum.StrEnum):
    """Where a cluster is on its way from the ring to a log."""

    NOT_UPGRADED = "not_upgraded"
    #: Agreed on; the nodes are asked whether all have the same metadata.
    BUILD_COORDINATOR_STATE = "build_coordinator_state"
    #: It has a log.
    DONE = "done"


class Upgrading(msgspec.Struct, frozen=True, array_like=True):
    """An upgrade under way. `begun_epoch` names it; `initiator` is the node that was asked for it, `ignored`
    are nodes that need not agree, ascending."""

    begun_epoch: int
    initiator: NodeId
    actor: str = ""
    ignored: tuple[NodeId, ...] = ()


class Ringed(msgspec.Struct, frozen=True, array_like=True):
    """`mode` is empty where the cluster has a log. `silenced`: members without a voice, ascending: they were
    lost with the log, and the others agree without them. `built_epoch`: of the entry that built the log; 0
    for a cluster that was founded with one. `gave_up`: why the last upgrade came to nothing."""

    mode: str = ""
    upgrading: Upgrading | None = None
    silenced: tuple[NodeId, ...] = ()
    built_epoch: int = 0
    gave_up: str = ""

    @property
    def upgrade_state(self) -> UpgradeState:
        if not self.mode:
            return UpgradeState.DONE
        if self.upgrading is not None:
            return UpgradeState.BUILD_COORDINATOR_STATE
        return UpgradeState.NOT_UPGRADED

    def validate(self) -> None:
        assert not self.mode or self.mode in RING_MODES, "a ring has a mode"
        assert self.mode or self.upgrading is None, "what has a log is not upgraded to one"
        assert self.mode or not self.silenced, "voices are of a ring"
        assert self.silenced == tuple(sorted(set(self.silenced))), "silenced members are sorted and unique"


NOT_RINGED: Final = Ringed()

RINGED: Final[Part[Ringed]] = struct_part("ring", 24, NOT_RINGED, lambda one: one.validate())
