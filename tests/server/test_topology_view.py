"""`system.topology` and `system.topology_requests` as clients read them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.cql.compile.prepare import prepare
from lockstep.cql.compile.prepared import Catalog
from lockstep.metadata.operations import Stage
from lockstep.metadata.transformations import Founder, Initialize, Register
from lockstep.schema.model import Schema
from lockstep.schema.types import parse_uuid
from lockstep.server.views.topology_view import CdcTables, TopologyTables, request_number, request_uuid
from lockstep.server.views.virtual import VirtualTables
from lockstep.topology.generations import PublishGenerations
from lockstep.topology.kinds.bootstrap import Bootstrap
from lockstep.topology.kinds.rebuild import Rebuild
from lockstep.topology.kinds.replication import ReplicationChange
from lockstep.topology.requests import CancelRequest, EnqueueRequest
from lockstep.topology.transformations import PrepareOperation
from lockstep.values.ids import NodeId
from tests.metadata.histories import History, SetKeyspaces, simple
from tests.server.test_virtual import select
from tests.topology.drills import run_out, run_to

X = NodeId(4)
JOIN = PrepareOperation(Bootstrap(X, (150,)))
#: The columns that are set for each node, and those that all nodes share.
NODE = (
    "key host_id datacenter rack tokens node_state release_version topology_request replaced_id "
    "rebuild_option num_tokens tokens_string shard_count ignore_msb cleanup_status supported_features "
    "request_id intended_storage_mode"
)
STATIC = (
    "ignore_nodes new_cdc_generation_data_uuid version fence_version transition_state "
    "committed_cdc_generations unpublished_cdc_generations global_topology_request "
    "global_topology_request_id enabled_features session tablet_balancing_enabled upgrade_state "
    "global_requests paused_rf_change_requests ongoing_rf_changes ongoing_restore_requests "
    "new_keyspace_rf_change_ks_name new_keyspace_rf_change_data"
)


def host(number: int) -> str:
    return f"00000000-0000-4000-8000-{number:012}"


class View:
    """Selects of the views of a history of three nodes and one that waits; epoch n is of second n."""

    def __init__(self) -> None:
        self.history = History()
        founders = tuple(
            Founder(host(n), f"10.0.0.{n}", 7000, 9042, 7080, "dc1", "r1", ((n - 1) * 100,), "5.0")
            for n in (1, 2, 3)
        )
        self.history.submit(Initialize("c", "n", founders, voters=(NodeId(1),)))
        self.history.submit(SetKeyspaces((("k", simple(3)),)))
        self.history.submit(Register(host(4), "10.0.0.4", 7000, 9042, 7080, "dc1", "r1", "5.0"))
        tables = TopologyTables(lambda: self.history.now, lambda epoch: epoch * 1000)
        #: What the node's clock says.
        self.now_ms = 0
        generations = CdcTables(lambda: self.history.now, lambda: self.now_ms * 1000)
        self.virtual = VirtualTables([*tables.tables(), *generations.tables()])

    def rows(self, table: str, names: str, rest: str = "", keyspace: str = "system") -> list[list[Any]]:
        """The columns named, as values."""
        text = f"SELECT {names} FROM {keyspace}.{table} {rest}"
        types = prepare(text, None, Catalog(Schema(), self.virtual.schema)).plan.shape.types
        kinds = [types[name.strip()] for name in names.removeprefix("DISTINCT ").split(",")]
        return [
            [
                kind.deserialize(data) if data is not None else None
                for kind, data in zip(kinds, row, strict=True)
            ]
            for row in select(self.virtual, text)
        ]

    def shared(self, names: str) -> list[Any]:
        (row,) = self.rows("topology", f"DISTINCT {names}", "WHERE key = 'topology'")
        return row

    def node(self, number: int, names: str) -> list[Any]:
        (row,) = self.rows("topology", names, f"WHERE key = 'topology' AND host_id = {host(number)}")
        return row

    def requests(self, names: str, rest: str = "") -> list[list[Any]]:
        return self.rows("topology_requests", names, rest)


def test_it_has_the_columns_of_the_source() -> None:
    table = View().virtual.schema.by_name["system"].by_name["topology"]
    assert sorted(column.name for column in table.static) == sorted(STATIC.split())
    assert sorted(column.name for column in table.columns) == sorted(f"{NODE} {STATIC}".split())
    assert [c.name for c in (*table.partition_key, *table.clustering)] == ["key", "host_id"]


def test_a_join_shows_in_every_column_that_it_changes() -> None:
    view = View()
    assert len(view.rows("topology", "host_id, node_state")) == 4
    assert view.shared("version, fence_version, transition_state, session, upgrade_state") == [
        3,
        2,
        None,
        None,
        "done",
    ]
    columns = "node_state, topology_request, num_tokens, tokens, cleanup_status, datacenter, release_version"
    assert view.node(4, columns) == ["none", None, 0, None, "clean", "dc1", "5.0"]
    view.history.submit(JOIN)
    assert view.node(4, columns)[:2] == ["bootstrapping", "join"]
    assert view.shared("version, fence_version, transition_state, session") == [
        4,
        2,
        "join_group0",
        "operation-1-join_group0",
    ]
    run_to(view.history, 1, Stage.WRITE_BOTH_READ_OLD)
    assert view.shared("version, fence_version, transition_state")[1:] == [6, "write_both_read_old"]
    run_to(view.history, 1, Stage.CLEANUP)
    assert [view.node(n, "cleanup_status")[0] for n in (1, 4)] == ["running", "clean"]
    run_out(view.history, 1)
    assert view.node(4, "node_state, tokens, tokens_string, num_tokens") == ["normal", ["150"], "150", 1]
    assert view.shared("transition_state") == [None]


def test_requests_are_found_by_the_id_that_the_node_shows() -> None:
    view = View()
    view.history.submit(EnqueueRequest(Bootstrap(X, (150,))))
    ((request_id, kind, done, start),) = view.requests("id, request_type, done, start_time")
    assert (kind, done, start) == ("join", False, 4000)
    assert view.node(4, "request_id") == [request_id]
    shown = f"{request_id.hex()[:8]}-0000-1000-8000-000000000000"
    view.history.submit(CancelRequest(1, "no need"))
    one = view.requests("done, error, end_time, target_host", f"WHERE id = {shown}")
    assert one == [[True, "no need", 5000, bytes.fromhex(host(4).replace("-", ""))]]
    assert view.requests("done", "WHERE id = 00000009-0000-1000-8000-000000000000") == []


@pytest.mark.parametrize("text", ["SELECT * FROM system.topology", "SELECT * FROM system.topology_requests"])
def test_a_select_of_everything_works(text: str) -> None:
    view = View()
    view.history.submit(JOIN)
    assert len(select(view.virtual, text)) == (4 if text.endswith("topology") else 1)


def test_a_change_of_replication_is_global() -> None:
    view = View()
    view.history.submit(EnqueueRequest(ReplicationChange("k", simple(2))))
    columns = "request_type, target_host, new_keyspace_rf_change_ks_name, new_keyspace_rf_change_data"
    options = {"class": "SimpleStrategy", "replication_factor": "2"}
    ((*shown, data),) = view.requests(columns)
    assert shown == ["keyspace_rf_change", None, "k"] and dict(data) == options
    assert view.shared("global_topology_request, global_topology_request_id, global_requests") == [
        "keyspace_rf_change",
        request_uuid(1),
        [request_uuid(1)],
    ]
    view.history.submit(PrepareOperation(ReplicationChange("k", simple(2)), request_id=1))
    assert view.shared("global_requests, ongoing_rf_changes") == [None, [request_uuid(1)]]


def test_features_show_as_nodes_and_the_cluster_have_them() -> None:
    view = View()
    assert view.node(4, "supported_features") == [sorted(view.history.now.directory.by_id[X].features)]
    enabled = list(view.history.now.features.enabled)
    assert view.shared("enabled_features") == [enabled or None]


def test_the_oldest_transition_shows_and_a_rebuild_is_none() -> None:
    view = View()
    view.history.submit(PrepareOperation(Rebuild(NodeId(1))))
    assert view.shared("transition_state") == [None]
    assert view.node(1, "node_state, topology_request") == ["rebuilding", "rebuild"]


@given(st.integers(1, (1 << 60) - 1), st.binary(min_size=16, max_size=16))
def test_the_uuid_of_a_request_leads_back_to_it(number: int, other: bytes) -> None:
    assert request_number(request_uuid(number)) == number
    assert request_number(other) in (0, number) or request_uuid(request_number(other)) == other


COMMITTED = "committed_cdc_generations, unpublished_cdc_generations, new_cdc_generation_data_uuid"


def times(view: View) -> list[list[Any]]:
    columns = "time, expired, is_current, streams"
    return view.rows("cdc_timestamps", columns, "WHERE key = 'timestamps'", "system_views")


def test_a_generation_is_shown_as_committed_and_then_as_published() -> None:
    view = View()
    (first,) = view.history.now.generations
    begun = (0, parse_uuid(first.id))
    assert view.shared(COMMITTED) == [[begun], None, None]
    view.history.submit(JOIN)
    run_to(view.history, 1, Stage.COMMIT_CDC_GENERATION)
    made = view.history.now.generations[-1]
    both = [begun, (made.timestamp_ms, parse_uuid(made.id))]
    assert view.shared("transition_state, session") == ["commit_cdc_generation", None]
    assert view.shared(COMMITTED) == [both, both[1:], both[1][1]]
    everything = view.rows("cdc_generations_v3", "id, range_end")
    assert [end for id_, end in everything if id_ == both[1][1]] == [0, 100, 150, 200]
    assert times(view) == [[0, None, True, 3]]
    run_to(view.history, 1, Stage.WRITE_BOTH_READ_OLD)
    assert view.shared(COMMITTED) == [both, both[1:], None]
    assert times(view) == [[0, None, True, 3]]
    view.history.submit(PublishGenerations(made.committed_epoch, 0))
    assert view.shared(COMMITTED) == [both, None, None]
    assert times(view) == [[0, made.timestamp_ms, True, 3], [made.timestamp_ms, None, False, 4]]
    view.now_ms = made.timestamp_ms
    assert [current for _, _, current, _ in times(view)] == [False, True]


def test_streams_are_found_by_generation_and_range() -> None:
    view = View()
    view.history.submit(JOIN)
    run_out(view.history, 1)
    view.history.submit(PublishGenerations(view.history.now.epoch, 0))
    made = view.history.now.generations[-1]
    wanted = [[end, [stream]] for end, stream in made.streams()]

    def streams(rest: str) -> list[list[Any]]:
        return view.rows("cdc_streams", "range_end, streams", rest, "system_views")

    there = f"WHERE time = {made.timestamp_ms}"
    assert streams(there) == wanted
    assert streams(f"{there} AND range_end > 0 AND range_end <= 150") == wanted[1:3]
    assert streams(f"WHERE time = {made.timestamp_ms + 1}") == [] and len(streams("")) == 3 + 4
    kept = view.rows("cdc_generations_v3", "id, range_end, streams, ignore_msb")
    assert [row[1:] for row in kept if row[0] == parse_uuid(made.id)] == [[*row, 0] for row in wanted]
