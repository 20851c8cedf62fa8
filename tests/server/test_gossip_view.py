"""Gossip as the admin API, a view and metrics show it, from three real nodes."""

from __future__ import annotations

import time
from typing import Any

import pytest

from lockstep.server.views.live_views import gossip, gossip_samples
from lockstep.values.errors import ConfigurationError
from tests.server.parts import Nodes
from tests.server.test_drivers import connect


def asked(cluster: Nodes, wanted: str | None = None) -> dict[str, Any]:
    async def work() -> dict[str, Any]:
        return gossip(cluster.members[0].node.services, wanted)

    return cluster.call(work())


def test_the_api_the_view_and_metrics_agree(three: Nodes) -> None:
    # Rounds are a second apart; by then each node has heard of every other.
    deadline_s = time.monotonic() + 15
    while not all(row["heard"] and row.get("ready") for row in asked(three)["nodes"]):
        assert time.monotonic() < deadline_s, asked(three)
        time.sleep(0.1)
    document = asked(three)
    assert document["schema"] == "gossip/1" and document["phi_threshold"] == 8.0
    assert [row["address"] for row in document["nodes"]] == [member.address for member in three.members]
    assert all(row["alive"] and row["state"] == "normal" and row["tokens"] == 16 for row in document["nodes"])
    driver = connect(three)
    try:
        rows = list(driver.connect().execute("SELECT node_id, is_ready, epoch FROM system_views.gossip_info"))
    finally:
        driver.shutdown()
    assert sorted(row[:2] for row in rows) == [(1, True), (2, True), (3, True)]

    async def samples() -> dict[str, float]:
        return {one.name: one.value for one in gossip_samples(three.members[0].node.services)}

    found = three.call(samples())
    assert found["lockstep_gossip_rounds_total"] > 0 and found["lockstep_gossip_messages_total"] > 0


def test_one_node_is_found_by_any_of_its_names(three: Nodes) -> None:
    whole = asked(three)["nodes"][1]
    for name in (str(whole["node"]), whole["host_id"], whole["address"]):
        assert [row["node"] for row in asked(three, name)["nodes"]] == [whole["node"]]
    with pytest.raises(ConfigurationError, match="there is no node nobody"):
        asked(three, "nobody")
