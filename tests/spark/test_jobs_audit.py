"""Replicas compared: one that missed writes is found, writes under way are no difference."""

from __future__ import annotations

import base64
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow")

import pyarrow as pa

from lockstep.documents.status import PlacedRange, Placements
from lockstep.local.clusters import LocalCluster
from lockstep.spark.cql_client import CqlConnection, Endpoint, pool_of
from lockstep.spark.jobs import audit, tables
from lockstep.spark.jobs.audit import Audit, AuditPart, AuditReport
from lockstep.spark.jobs.elements import Naming, Place, State, elements_of
from lockstep.spark.jobs.tables import Access, Described, DescribedColumn, TableName
from lockstep.spark.loads.writer import bulk_load
from lockstep.spark.replica_digests import FixedReplicas, fix_replicas
from lockstep.values import codec
from lockstep.values.errors import ConfigurationError, NotReplica, PeerUnreachable
from lockstep.values.ids import Consistency
from lockstep.values.rows import Cell, Deletion, Liveness, Partition, Position, ReadResult, Row
from lockstep.values.tokens import TOKEN_MAX, TOKEN_MIN

from .support import FIRST_ADDRESS, TIMEOUT_S

#: Beside the cluster of the other tests.
ADDRESS = FIRST_ADDRESS.replace("127.0.", "127.1.")
PORTS = (19342, 17300, 17380)
KEYSPACE = "CREATE KEYSPACE shop WITH replication = {'class': 'NetworkTopologyStrategy', 'dc1': 3}"
T = TableName("shop", "t")
NAMES = {2: "v", 3: "w"}


class InProcess:
    """As much of a session as `spread` and `watched` use; tasks run here, one after another."""

    defaultParallelism = 2

    def __init__(self, between: Callable[[], None] = lambda: None) -> None:
        self.sparkContext = self
        self._between = between
        self._parts: Sequence[Any] = ()

    def parallelize(self, parts: Sequence[Any], _count: int) -> InProcess:
        self._parts = parts
        return self

    def flatMap(self, work: Callable[[Any], Sequence[Any]]) -> InProcess:
        self._found = [one for part in self._parts for one in work(part)]
        return self

    def collect(self) -> list[Any]:
        return self._found

    def statusTracker(self) -> InProcess:
        return self

    def getActiveStageIds(self) -> tuple[int, ...]:
        return ()


class Phases:
    """Runs something in the pause between the two looks."""

    def __init__(self, pause: Callable[[], None] = lambda: None) -> None:
        self._pause = pause

    def phase(self, text: str) -> None:
        if text.startswith("waiting"):
            self._pause()

    def at(self, done: int, total: int) -> None:
        pass


def result(*rows: Row, token: int = 7) -> ReadResult:
    return ReadResult((Partition(token, b"k", rows=rows),))


def row(value: bytes | None, at_us: int, clustering: bytes = b"1") -> Row:
    return Row(clustering, Liveness(5), cells=(Cell(2, value, at_us),))


def test_an_element_is_what_differs_and_nothing_beside_it() -> None:
    (found,) = elements_of({1: result(row(b"a", 9)), 2: result(row(b"b", 8))}, NAMES, 10)
    assert found.place == Place(7, b"k", b"1", "v")
    assert found.held == ((1, State(9, b"a")), (2, State(8, b"b")))
    assert elements_of({1: result(row(b"a", 9)), 2: result(row(b"a", 9))}, NAMES, 10) == []


def test_what_was_written_since_is_not_compared() -> None:
    assert elements_of({1: result(row(b"a", 11)), 2: result(row(b"b", 8))}, NAMES, 10) == []
    found = elements_of({1: result(row(b"a", 11)), 2: ReadResult(())}, NAMES, 10)
    assert [one.place.column for one in found] == ["(row marker)"]


def test_deletions_are_elements_of_their_own() -> None:
    gone = ReadResult((Partition(7, b"k", Deletion(9, 1)),))
    dead = result(Row(b"1", deletion=Deletion(9, 1)))
    assert [one.place.column for one in elements_of({1: gone, 2: dead}, NAMES, 10)] == [
        "(partition deletion)",
        "(row deletion)",
    ]


def test_elements_of_collections_are_told_by_value_and_never_end_an_audit() -> None:
    columns = (
        DescribedColumn("id", "int", "partition_key", 0),
        DescribedColumn("l", "list<text>", "regular"),
        DescribedColumn("s", "set<text>", "regular"),
        DescribedColumn("m", "map<text, int>", "regular"),
        DescribedColumn("n", "int", "regular"),
    )
    naming = Naming(Described("k", "t", columns))
    place_of_entry = bytes.fromhex("f3a1b2c41dd211b28080808080808080")
    for column, path, value, told in (
        ("l", place_of_entry, b"", ""),
        ("l", place_of_entry, b"x", "x"),
        ("s", b"", b"", ""),
        ("s", b"x", b"", "x"),
        ("m", b"", b"\x00\x00\x00\x01", ": 1"),
        ("n", None, b"\x01\x02", "0x0102"),
        ("gone", None, b"x", "0x78"),
    ):
        place = Place(7, b"\x00\x00\x00\x01", b"", column, path)
        assert naming.value(place, State(1, value)) == told


def test_only_what_all_have_told_is_compared() -> None:
    both = ReadResult((Partition(7, b"k", rows=(row(b"a", 1), row(b"b", 1, b"2"))), Partition(8, b"l")))
    kept = audit.until(both, Position(7, b"k", b"1"))
    assert [part.token for part in kept.partitions] == [7] and len(kept.partitions[0].rows) == 1
    assert audit.until(both, None) is both
    assert len(audit.until(both, Position(7, b"k")).partitions[0].rows) == 2


def test_buckets_are_shared_out_by_width() -> None:
    half = Placements(
        ranges=(
            PlacedRange(TOKEN_MIN, 0, (1, 2)),
            PlacedRange(0, 10, (2, 3)),
            PlacedRange(10, TOKEN_MAX, (1, 3)),
        )
    )
    found = audit.divide(half, 1000)
    assert [part.buckets for part in found] == [500, 1, 500]
    assert found[1] == AuditPart(0, 10, (2, 3), 1)
    many = audit.divide(half, 1 << 16)
    assert max(part.buckets for part in many) <= 4096 and len(many) == 17
    assert (many[0].left, many[-1].right) == (TOKEN_MIN, TOKEN_MAX)
    witnessed = Placements(ranges=(PlacedRange(TOKEN_MIN, TOKEN_MAX, (1, 2, 3), witnesses=(2,)),))
    assert audit.divide(witnessed, 1)[0].replicas == (1, 3)
    with pytest.raises(ConfigurationError, match="one replica"):
        audit.divide(Placements(keyspace="k", ranges=(PlacedRange(TOKEN_MIN, TOKEN_MAX, (1,)),)), 10)


def test_buckets_that_touch_are_repaired_as_one() -> None:
    report = AuditReport(
        "t", 1, False, True, 3, (), 3, 0, (), False, ((0, 5), (5, 9), (20, 30)), (), (), 0.0
    )  # fmt: skip
    assert audit.repair_ranges(report) == ((0, 9), (20, 30))


@pytest.fixture(scope="module")
def behind(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Three nodes, of which n3 missed an update, a deletion and a new row, and got no hints of them."""
    settings = {"hints": {"hinted_handoff_enabled": False}}
    home = tmp_path_factory.mktemp("clusters")
    with LocalCluster.create(
        "audited", 3, home=home, first_address=ADDRESS, ports=PORTS, settings=settings
    ) as made:
        made.start()
        connection = CqlConnection.open(Endpoint(made.contact_points[0], PORTS[0]), TIMEOUT_S)
        connection.query(KEYSPACE)
        connection.query("CREATE TABLE shop.t (id text, n int, v text, PRIMARY KEY (id, n))")
        for number in range(40):
            connection.query(
                f"INSERT INTO shop.t (id, n, v) VALUES ('k{number}', 1, 'old')", (), Consistency.ALL
            )
        made.kill("n3")
        connection.query("UPDATE shop.t SET v = 'new' WHERE id = 'k1' AND n = 1", (), Consistency.TWO)
        connection.query("DELETE FROM shop.t WHERE id = 'k2' AND n = 1", (), Consistency.TWO)
        connection.query("INSERT INTO shop.t (id, n, v) VALUES ('k40', 1, 'new')", (), Consistency.TWO)
        made.start(["n3"])
        connection.close()
        yield made
        pool_of(os.getpid()).close()


def audited(cluster: LocalCluster, phases: Phases, **changed: Any) -> AuditReport:
    admin = cluster.any_admin()
    placed = admin.get("/v1/placements", keyspace="shop")["ranges"]
    placements = Placements(
        keyspace="shop",
        epoch=1,
        ranges=tuple(PlacedRange(one["start"], one["end"], tuple(one["reads"])) for one in placed),
    )
    doors: dict[int, Any] = {cluster.node_id(name): cluster.admin(name) for name in ("n1", "n2", "n3")}
    doors |= changed.pop("doors", {})
    access = Access(",".join(cluster.contact_points), PORTS[0])
    of = changed.pop("of", T)
    described = tables.describe(access, of)
    by_nodes = changed.pop("by_nodes", False)
    wanted = Audit(of, buckets=64, settle_s=0.0)
    return audit.run(
        InProcess(),
        doors,
        placements,
        described,
        wanted,
        phases,
        None if by_nodes else access,  # type: ignore[arg-type]
    )


@pytest.mark.slow
@pytest.mark.parametrize("by_nodes", [False, True])
def test_a_replica_that_missed_writes_is_named_with_values_and_times(
    behind: LocalCluster, by_nodes: bool
) -> None:
    found = audited(behind, Phases(), by_nodes=by_nodes)
    third = behind.node_id("n3")
    assert (found.equal, found.complete) == (False, True)
    by_place = {
        (one.key["id"], one.column): {node: rest for node, *rest in one.held} for one in found.differences
    }
    assert {key for key, _ in by_place} == {"k1", "k2", "k40"}
    changed = by_place["k1", "v"]
    assert changed[third][0] == "old" and {changed[node][0] for node in changed if node != third} == {"new"}
    assert all(changed[third][1] < changed[node][1] for node in changed if node != third)
    assert by_place["k40", "v"][third] == [None, 0]
    assert by_place["k2", "(row deletion)"][third] == [None, 0] and by_place["k2", "v"][third][0] == "old"
    assert dict(found.rows)[third] == 40 and set(dict(found.rows).values()) == {40, 41}
    assert all(any(left < one.token <= right for left, right in found.wrong) for one in found.differences)


@pytest.mark.slow
def test_writes_between_the_two_looks_are_no_difference(behind: LocalCluster) -> None:
    """What differed and was written again is under way, not different."""
    connection = CqlConnection.open(Endpoint(behind.contact_points[0], PORTS[0]), TIMEOUT_S)

    def write() -> None:
        connection.query("INSERT INTO shop.t (id, n, v) VALUES ('k40', 1, 'newer')", (), Consistency.ALL)

    found = audited(behind, Phases(write))
    connection.close()
    assert {one.key["id"] for one in found.differences} == {"k1", "k2"}
    assert found.settled == 2


@pytest.mark.slow
def test_a_replica_that_does_not_answer_is_told_of(behind: LocalCluster) -> None:
    class Gone:
        def get(self, path: str, **query: Any) -> dict[str, Any]:
            raise PeerUnreachable("no node answers")

    third = behind.node_id("n3")
    found = audited(behind, Phases(), doors={third: Gone()}, by_nodes=True)
    assert (found.equal, found.complete) == (True, False)
    assert {(one.node, one.why) for one in found.unanswered} == {(third, "no node answers")}


@pytest.mark.slow
def test_buckets_that_differ_and_whose_rows_nobody_tells_are_not_called_equal(behind: LocalCluster) -> None:
    """As where the nodes want credentials, and digests came from the readers beside them."""

    class Refusing:
        def get(self, path: str, **query: Any) -> dict[str, Any]:
            raise PeerUnreachable("no credentials")

    third = behind.node_id("n3")
    found = audited(behind, Phases(), doors={third: Refusing()})
    assert (found.equal, found.complete, found.different) == (False, False, 0)
    assert len(found.unread) in range(1, 4) and {one.node for one in found.unanswered} == {third}


@pytest.mark.slow
def test_readers_beside_nodes_tell_the_digests_that_nodes_tell(behind: LocalCluster) -> None:
    wanted = Access(",".join(behind.contact_points), PORTS[0]).checked(T)
    fixed = fix_replicas(wanted)
    assert fixed is not None
    whole = (TOKEN_MIN, TOKEN_MAX, 64)
    asked: dict[int, list[tuple[int, int, int]]] = {}
    for part in fixed.snapshot.ranges:
        for node in part.nodes:
            asked.setdefault(node, []).append((part.left, part.right, 3))
    told = fixed.digests(asked, 1)
    assert len(told) == sum(map(len, asked.values())) and set(asked) == {
        behind.node_id(name) for name in ("n1", "n2", "n3")
    }
    for (node, (left, right, count)), digests in told.items():
        name = next(name for name in ("n1", "n2", "n3") if behind.node_id(name) == node)
        admin = behind.admin(name).get(
            "/v1/replica/digests", keyspace="shop", table="t", left=left, right=right, now_s=1, buckets=count
        )
        assert digests == list(zip(admin["digests"], admin["rows"], strict=True))
    # What is no range of the node, and what has no parts, is not told.
    assert fixed.digests({next(iter(asked)): [(*whole[:2], 0)]}, 1) == {}
    fixed.close()
    assert fixed.digests(asked, 1) == {}


@pytest.fixture
def quiet(tmp_path: Path) -> Iterator[LocalCluster]:
    """Three nodes that store nothing, and make no hints."""
    settings = {"hints": {"hinted_handoff_enabled": False}}
    first = ADDRESS.replace("127.1.", "127.2.")
    with LocalCluster.create(
        "quiet", 3, home=tmp_path, first_address=first, ports=PORTS, settings=settings
    ) as made:
        made.start()
        yield made
        pool_of(os.getpid()).close()


@pytest.mark.slow
def test_a_load_is_compared_by_its_files(quiet: LocalCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until something is written into its ranges; then by what is stored."""
    connection = CqlConnection.open(Endpoint(quiet.contact_points[0], PORTS[0]), TIMEOUT_S)
    connection.query(KEYSPACE)
    connection.query("CREATE TABLE shop.loaded (id int PRIMARY KEY, v text)")
    rows = pa.table({"id": pa.array(range(500), pa.int32()), "v": pa.array([f"v{n}" for n in range(500)])})
    where = {"hosts": ",".join(quiet.contact_points), "port": str(PORTS[0])}
    bulk_load(rows, mode="append", keyspace="shop", table="loaded", **where)
    read: list[int] = []
    right = FixedReplicas._of_content

    def seen(fixed: FixedReplicas, parts: Sequence[Any], now_s: int) -> Any:
        read.append(len(parts))
        return right(fixed, parts, now_s)

    monkeypatch.setattr(FixedReplicas, "_of_content", seen)
    of = TableName("shop", "loaded")
    found = audited(quiet, Phases(), of=of)
    assert (found.equal, found.complete) == (True, True) and not any(read)
    assert [count for _, count in found.rows] == [500] * 3
    connection.query("INSERT INTO shop.loaded (id, v) VALUES (-1, 'new')", (), Consistency.ALL)
    found = audited(quiet, Phases(), of=of)
    assert (found.equal, found.complete) == (True, True) and any(read)
    assert [count for _, count in found.rows] == [501] * 3
    quiet.kill("n3")
    connection.query("UPDATE shop.loaded SET v = 'other' WHERE id = 7", (), Consistency.TWO)
    quiet.start(["n3"])
    connection.close()
    found = audited(quiet, Phases(), of=of)
    assert [(one.key["id"], one.column) for one in found.differences] == [("7", "v")]


@pytest.mark.slow
def test_a_node_answers_for_what_it_holds_alone(behind: LocalCluster, tmp_path: Path) -> None:
    admin = behind.admin("n1")
    asked = {"keyspace": "shop", "table": "t", "left": TOKEN_MIN, "right": TOKEN_MAX, "now_s": 1}
    told = admin.get("/v1/replica/digests", buckets=8, **asked)
    assert len(told["digests"]) == 8 and sum(told["rows"]) >= 40
    with pytest.raises(ConfigurationError, match="1 to 4096 parts"):
        admin.get("/v1/replica/digests", buckets=0, **asked)
    with pytest.raises(ConfigurationError, match="no table"):
        admin.get("/v1/replica/digests", buckets=1, **{**asked, "table": "x"})
    with pytest.raises(ConfigurationError, match="no range"):
        admin.get("/v1/replica/rows", **{**asked, "left": 5, "right": 5})
    with pytest.raises(ConfigurationError, match="not where a page ended"):
        admin.get("/v1/replica/rows", after="AAAA", **asked)
    page = admin.get("/v1/replica/rows", **asked)
    content = codec.decoder(ReadResult).decode(base64.b64decode(page["content"]))
    assert sum(len(part.rows) for part in content.partitions) >= 40 and "v" in page["columns"].values()
    connection = CqlConnection.open(Endpoint(behind.contact_points[0], PORTS[0]), TIMEOUT_S)
    connection.query("CREATE KEYSPACE lone WITH replication = {'class': 'NetworkTopologyStrategy', 'dc1': 1}")
    connection.query("CREATE TABLE lone.t (id int PRIMARY KEY)")
    connection.close()
    with pytest.raises(NotReplica, match="is not read from"):
        admin.get("/v1/replica/digests", buckets=1, **{**asked, "keyspace": "lone"})
