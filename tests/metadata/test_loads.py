"""Bulk loads in the log: what begins, what is committed, what is refused, and that each does so once."""

from __future__ import annotations

import uuid

import pytest
from msgspec.structs import replace

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.load_entries import (
    KINDS,
    BeginLoad,
    CommitLoad,
    EndLoad,
    ring_of,
    table_of,
    why_not,
)
from lockstep.metadata.loads import LoadState
from lockstep.metadata.schema_change import ChangeSchema
from lockstep.metadata.transformations import Initialize
from lockstep.quorum.plans import PlanBook
from lockstep.schema.changes import (
    AddColumns,
    AlterOptions,
    CreateKeyspace,
    CreateTable,
    DropTable,
    EmptyTable,
    NewColumn,
)
from lockstep.schema.model import ColumnKind
from lockstep.schema.type_changes import CreateIndex, IndexedPart
from lockstep.schema.view_changes import CreateView
from lockstep.topology.kinds.decommission import Decommission
from lockstep.topology.transformations import PrepareOperation
from lockstep.values.errors import Rejected
from lockstep.values.ids import NodeId
from lockstep.values.node_limits import LOADS_ENDED_KEPT_MAX, LOADS_RUNNING_MAX
from tests.metadata.histories import History, founder, registry

DIGEST = b"d" * 16
LEASE_MS = 1000


@pytest.fixture
def history() -> History:
    made = History(registry(KINDS))
    made.submit(Initialize("c", "n", tuple(founder(n, (n * 10,)) for n in range(1, 5))))
    options = (("class", "SimpleStrategy"), ("replication_factor", "2"))
    made.submit(ChangeSchema(CreateKeyspace("k", options)))
    made.submit(ChangeSchema(table("t")))
    return made


def table(name: str, kind: str = "int") -> CreateTable:
    key = NewColumn("k", "int", ColumnKind.PARTITION_KEY, 0)
    value = NewColumn("v", kind, ColumnKind.REGULAR)
    return CreateTable("k", name, str(uuid.uuid5(uuid.NAMESPACE_OID, name)), (key, value))


def begin(job: str = "a", **more: object) -> BeginLoad:
    return BeginLoad(job, "k", "t", 5000, LEASE_MS, **more)  # type: ignore[arg-type]


def commit(cluster: ClusterMetadata, job: str = "a", digest: bytes = DIGEST) -> CommitLoad:
    return CommitLoad(job, digest, cluster.epoch, 7, 100)


def refused(history: History, entry: BeginLoad | CommitLoad | EndLoad) -> str:
    refusal = history.tried(entry)
    assert refusal is not None
    return refusal.message


def test_a_load_is_committed_once_and_remembered(history: History) -> None:
    began = history.submit(begin())
    load = began.loads.by_job["a"]
    assert (load.state, load.timestamp_us, load.lease_until_ms) == (LoadState.RUNNING, 5_000_000, 6000)
    done = history.submit(commit(began))
    load = done.loads.by_job["a"]
    assert (load.state, load.digest, load.rows, load.ended_epoch) == (
        LoadState.COMMITTED, DIGEST, 7, done.epoch,
    )  # fmt: skip
    # Asked again, nothing changes; with other files it is refused; nothing takes it back.
    assert history.submit(commit(began)).loads is done.loads
    assert "with other files" in refused(history, commit(began, digest=b"other"))
    assert history.submit(EndLoad("a", "abort")).loads is done.loads
    assert history.submit(begin()).loads is done.loads
    assert history.replayed().loads == history.now.loads


def test_a_table_knows_of_its_loads(history: History) -> None:
    began = history.submit(begin())
    table_id = began.loads.by_job["a"].table_id
    assert before(began, table_id) < began.epoch
    done = history.submit(commit(began))
    assert before(done, table_id) == done.epoch


def before(cluster: ClusterMetadata, table_id: int) -> int:
    placement = PlanBook(lambda: cluster, lambda: 1).placement(table_id)
    assert placement is not None
    return placement.changed_epoch


def test_what_was_given_up_or_expired_is_never_committed(history: History) -> None:
    history.submit(begin())
    assert "was renewed" in refused(history, EndLoad("a", "lost", 5999))
    history.submit(replace(begin(), at_ms=7000))
    assert "was renewed" in refused(history, EndLoad("a", "lost", 7999))
    ended = history.submit(EndLoad("a", "lost", 8000))
    assert ended.loads.by_job["a"].state is LoadState.EXPIRED
    assert "was expired: lost" in refused(history, commit(ended))
    history.submit(begin("b"))
    history.submit(EndLoad("b", "enough"))
    assert "was aborted: enough" in refused(history, commit(history.now, "b"))
    assert "no load c" in refused(history, commit(history.now, "c"))
    assert "no load c" in refused(history, EndLoad("c", ""))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (EmptyTable("k", "t"), "dropped or emptied"),
        (DropTable("k", "t"), "dropped or emptied"),
        (AddColumns("k", "t", (NewColumn("w", "int", ColumnKind.REGULAR),)), "was altered"),
    ],
)
def test_of_a_table_that_changed_nothing_is_committed(
    history: History, change: EmptyTable | DropTable | AddColumns, message: str
) -> None:
    history.submit(begin())
    history.submit(ChangeSchema(change))
    assert message in refused(history, commit(history.now))


def test_of_ranges_that_moved_nothing_is_committed_before_it_was_staged_again(history: History) -> None:
    began = history.submit(begin())
    history.submit(PrepareOperation(Decommission(NodeId(4))))
    moving = history.now
    newest = max(one.group.epoch for one in moving.placements.rings[0].ranges)
    if newest > began.epoch:
        assert "went to other replicas" in refused(history, commit(began))
    else:
        # Nothing is written elsewhere yet: what was staged is right.
        assert history.tried(commit(began)) is None
        return
    assert history.tried(commit(moving)) is None


def test_overwriting_replaces_the_table_in_the_same_entry(history: History) -> None:
    began = history.submit(begin(overwrite=True))
    load = began.loads.by_job["a"]
    assert load.stored_id != load.table_id == began.schema.table("k", "t").id  # type: ignore[union-attr]
    # Another table gets another id meanwhile.
    history.submit(ChangeSchema(table("other")))
    done = history.submit(commit(history.now))
    found = done.schema.table("k", "t")
    assert found is not None and found.id == load.stored_id
    assert done.table(load.table_id) is None
    assert len({one.id for one in done.schema.by_name["k"].by_name.values()}) == 2
    history.submit(ChangeSchema(table("third")))
    history.now.validate()
    assert history.replayed().schema == history.now.schema


def test_names_and_bounds(history: History) -> None:
    assert "no table k.none" in refused(history, replace(begin(), table="none"))
    assert "1 to 128 characters" in refused(history, begin("x" * 129))
    assert "the lease" in refused(history, replace(begin(), lease_ms=0))
    history.submit(begin())
    history.submit(ChangeSchema(table("u")))
    assert "another load" in refused(history, replace(begin(), table="u"))
    assert "another load" in refused(history, begin(overwrite=True))
    for number in range(LOADS_RUNNING_MAX - 1):
        history.submit(begin(f"job {number}"))
    assert f"{LOADS_RUNNING_MAX} loads are under way" in refused(history, begin("one more"))


def test_only_so_many_are_remembered(history: History) -> None:
    for number in range(LOADS_ENDED_KEPT_MAX + 3):
        history.submit(begin(f"job {number}"))
        history.submit(EndLoad(f"job {number}", "test"))
    assert len(history.now.loads.ended) == LOADS_ENDED_KEPT_MAX
    assert "job 2" not in history.now.loads.by_job


def test_tables_that_count_are_refused(history: History) -> None:
    history.submit(ChangeSchema(table("counts", "counter")))
    found = history.now.schema.table("k", "counts")
    assert found is not None and "counters" in why_not(found)
    with pytest.raises(Rejected, match="counters"):
        history.submit(replace(begin(), table="counts"))


def test_tables_whose_changes_are_captured_are_refused_and_so_are_logs(history: History) -> None:
    captured = replace(table("c"), options=(("cdc", (("enabled", "true"),)),))
    history.submit(ChangeSchema(captured))
    for name, reason in (("c", "are captured"), ("c_scylla_cdc_log", "log of changes")):
        with pytest.raises(Rejected, match=reason):
            history.submit(replace(begin(), table=name))


def test_a_load_into_a_table_that_began_to_capture_is_refused(history: History) -> None:
    history.submit(begin())
    history.submit(ChangeSchema(AlterOptions("k", "t", (("cdc", (("enabled", "true"),)),))))
    assert "altered" in refused(history, commit(history.now))


def test_a_table_does_not_become_tracked_while_it_is_loaded(history: History) -> None:
    history.submit(begin())
    tracked = ChangeSchema(AlterOptions("k", "t", (("replication_type", "tracked"),)))
    with pytest.raises(Rejected, match="loaded in bulk"):
        history.submit(tracked)
    history.submit(EndLoad("a", "abort"))
    history.submit(tracked)
    found = history.now.schema.table("k", "t")
    assert found is not None and found.tracked_since == history.now.epoch


def test_tables_of_which_more_than_the_rows_would_have_to_change_are_refused(history: History) -> None:
    history.submit(ChangeSchema(table("seen")))
    view = CreateView("k", "w", "9" * 32, "k", "seen", (), ("v",), ("k",), not_null=("k", "v"))
    history.submit(ChangeSchema(view))
    history.submit(ChangeSchema(table("found")))
    history.submit(ChangeSchema(CreateIndex("k", "found", "by_v", (IndexedPart("v"),))))
    for name, reason in (
        ("seen", r"has materialized views \(w\)"),
        ("w", "is a materialized view: load its base table"),
    ):
        with pytest.raises(Rejected, match=reason):
            history.submit(replace(begin(), table=name))
    mine = history.now.schema.table("k", "t")
    assert mine is not None and why_not(mine) == ""
    assert history.submit(replace(begin(), table="found")).loads.running[0].table == "found"
    assert why_not(replace(mine, keyspace="system_auth")) == "system_auth keyspace is not user-modifiable"


def test_a_load_into_a_table_that_got_an_index_is_refused(history: History) -> None:
    began = history.submit(begin())
    load = replace(began.loads.by_job["a"])
    indexed = history.submit(ChangeSchema(CreateIndex("k", "t", "by_v", (IndexedPart("v"),))))
    now = indexed.schema.table("k", "t")
    assert now is not None
    with pytest.raises(Rejected, match="was altered"):
        table_of(indexed, load)
    assert table_of(indexed, replace(load, table_epoch=now.epoch)) is now


def test_while_replication_changes_nothing_is_committed(
    history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    began = history.submit(begin())
    found = began.schema.table("k", "t")
    assert found is not None
    group = ring_of(began, found).id
    monkeypatch.setattr(ClusterMetadata, "recounting", {group: 1})
    assert "the replication of keyspace k changes" in refused(history, commit(began))
