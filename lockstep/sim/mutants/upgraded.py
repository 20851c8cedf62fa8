"""Bugs planted in the way from the ring to a log: several logs, none, one that nobody was asked about, or a
node that is let in although it was ignored."""

from __future__ import annotations

import contextlib
from typing import Any

import msgspec

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.directory import EXCLUDED
from lockstep.metadata.groups.upgrade_entries import BuildLog
from lockstep.metadata.transformations import Register
from lockstep.node.recovery import building
from lockstep.node.ring import upgrading
from lockstep.recovery.living import Anew
from lockstep.recovery.upgrading import first_voters
from lockstep.sim.plant import Planted, replaced


def _lets_in_the_ignored() -> contextlib.AbstractContextManager[None]:
    plain = BuildLog.apply

    def apply(self: BuildLog, cluster: ClusterMetadata, epoch: int) -> ClusterMetadata:
        return plain(self, cluster, epoch).changed(EXCLUDED.set(cluster.excluded))

    return replaced((BuildLog, "apply", apply))


def _each_begins_alone() -> contextlib.AbstractContextManager[None]:
    """Each voter takes itself for the only one of the log."""
    plain = building.begin_groups

    async def begin(runtime: Any, anew: Anew, value: ClusterMetadata, own: Any) -> None:
        alone = (own,) if own in anew.voters else ()
        await plain(runtime, msgspec.structs.replace(anew, voters=alone, management=alone), value, own)

    return replaced((building, "begin_groups", begin))


def _never_begins() -> contextlib.AbstractContextManager[None]:
    """Nobody begins its part of the log that was agreed on."""

    async def begin(*_: object) -> None:
        return None

    return replaced((upgrading, "begin_log", begin))


def _builds_unasked() -> contextlib.AbstractContextManager[None]:
    """The log is built whatever others say, and with who was ignored."""

    def step(cluster: Any, running: Any, _answers: Any, _silent: Any, _waited: int, at_ms: int) -> BuildLog:
        return BuildLog(running.begun_epoch, first_voters(cluster, running)[:2], at_ms)

    return replaced((upgrading, "next_step", step))


def _registers_unasked() -> contextlib.AbstractContextManager[None]:
    """A newcomer that saw a ring is registered by the log, and its management group was never asked."""
    return replaced((Register, "is_before_log", lambda self, cluster: False))


DIRECTED = (Planted("upgrade_registers_unasked", "a node that nobody let in", "", _registers_unasked),)

UPGRADED = (
    Planted("upgrade_lets_in_ignored", "who was ignored has a part", "upgraded", _lets_in_the_ignored),
    Planted("upgrade_each_begins_alone", "several logs of one cluster", "upgraded", _each_begins_alone),
    Planted("upgrade_never_begins", "a cluster without ring and log", "upgraded", _never_begins),
    Planted("upgrade_builds_unasked", "two voters, or none", "upgraded", _builds_unasked),
)
