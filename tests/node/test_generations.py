"""Generations of change data capture in a running cluster."""

from __future__ import annotations

from tests.node.support import Town, keyspace, table

AHEAD_MS = 65_000


def test_every_node_knows_the_generation_of_a_join_before_it_takes_effect() -> None:
    with Town() as town:
        town.found()
        for change in (keyspace("k"), table("k")):
            assert town.finish(town.submit(1, change)).error is None
        (first,) = town.newest.generations
        begun_ms = town.node(1).runtime.clock.wall_us() // 1000
        assert 0 < first.timestamp_ms <= begun_ms, "that of a new cluster counts at once"
        town.start(4)
        town.until(lambda: town.ready(4))
        town.agreed(1, 2, 3, 4)
        now_ms = town.node(1).runtime.clock.wall_us() // 1000
        for number in (1, 2, 3, 4):
            cluster = town.node(number).log.cluster
            assert cluster.generations == town.newest.generations
            made = cluster.generations[-1]
            assert made.is_published and now_ms < made.timestamp_ms <= now_ms + AHEAD_MS
            assert made.timestamp_ms >= begun_ms + AHEAD_MS
            assert list(made.range_ends()) == list(cluster.directory.circle.tokens)
