"""The verdict on a cluster from the metadata value, who is alive and what nodes report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.topology.health import View, findings, level_of, verdict
from lockstep.values.conditions import CONDITIONS, Condition, Level
from tests.metadata.histories import simple, started

FULL = Condition("DISK_FULL", since_us=1)


def cluster(factor: int = 3) -> ClusterMetadata:
    return started([(100,), (200,), (300,)], ("ks", simple(factor))).now


def said(
    alive: Sequence[int],
    reported: Mapping[int, Sequence[Condition]] | None = None,
    *,
    factor: int = 3,
    own: int = 1,
) -> tuple[Level, str]:
    found = findings(cluster(factor), View(own, frozenset(alive), reported or {}))
    return level_of(found), verdict(found, own, running=False)


def test_a_cluster_is_healthy_only_without_findings() -> None:
    assert said([1, 2, 3]) == (Level.HEALTHY, "healthy: every range has all its replicas")
    assert said([1, 2]) == (Level.DEGRADED, "degraded: node 3 is down; every range has a quorum")
    level, text = said([1])
    assert level is Level.UNAVAILABLE
    assert text.startswith("unavailable: no quorum for some ranges of ks; node 2 is down; node 3 is down")
    assert said([1, 2], factor=1)[0] is Level.UNAVAILABLE


def test_full_disks_count_for_writes_only() -> None:
    assert said([1, 2, 3], {2: [FULL]})[0] is Level.DEGRADED
    level, text = said([1, 2], {2: [FULL]})
    assert level is Level.UNAVAILABLE and "no quorum takes writes for some ranges of ks" in text


def test_what_stops_one_node_is_unavailable_there_and_a_degraded_cluster_elsewhere() -> None:
    stopped = {2: [Condition("METADATA_STOPPED", detail="an unknown kind")]}
    assert said([1, 2, 3], stopped, own=2) == (
        Level.UNAVAILABLE,
        "unavailable: this node serves no more: an unknown kind",
    )
    assert said([1, 2, 3], stopped)[0] is Level.DEGRADED


def test_a_condition_of_a_newer_release_is_not_healthy() -> None:
    level, text = said([1, 2, 3], {3: [Condition("LEAKS_OIL", "gasket")]})
    assert level is Level.DEGRADED and "LEAKS_OIL gasket" in text


def test_every_row_makes_a_sentence_and_says_what_to_do() -> None:
    for code, kind in CONDITIONS.items():
        assert kind.summary.format(node="node 1", subject="s", detail="d") and kind.at_risk and kind.hint, (
            code
        )
