"""Factors with witnesses in statements, and what a keyspace that has some may not have."""

from __future__ import annotations

import pytest

from lockstep.schema.changes import (
    AlterKeyspace,
    AlterOptions,
    CreateKeyspace,
    SchemaChange,
    apply_change,
)
from lockstep.schema.model import Replication, Schema
from lockstep.schema.replication_options import parse_replication, replication_map
from lockstep.schema.view_changes import CreateView
from lockstep.schema.witnesses import refuse_change
from lockstep.values import codec
from lockstep.values.errors import Rejected
from tests.schema.test_tracking import table

TOPOLOGY = "NetworkTopologyStrategy"


def factors(*named: tuple[str, str]) -> tuple[tuple[str, str], ...]:
    return (("class", TOPOLOGY), *named)


def keyspace(*named: tuple[str, str], word: str | None = "tracked") -> CreateKeyspace:
    return CreateKeyspace("ks", factors(*named or (("dc1", "3/1"),)), replication_type=word)


SPREAD = CreateKeyspace("ks", factors(("dc1", "3/1")), tablets=(), replication_type="tracked")


def applied(*changes: SchemaChange) -> Schema:
    schema = Schema()
    for epoch, change in enumerate(changes, start=1):
        schema, _ = apply_change(schema, change, epoch)
    return schema


def test_a_factor_says_how_many_of_its_replicas_are_witnesses() -> None:
    found = parse_replication("ks", factors(("dc1", "3/1"), ("dc2", "2"), ("dc3", "2/2")), ())
    assert found.factors == (("dc1", 3), ("dc2", 2), ("dc3", 2)) and found.total == 7
    assert found.witnesses == {"dc1": 1, "dc3": 2} and found.has_witnesses
    assert found.text() == f"{TOPOLOGY} dc1 3/1, dc2 2, dc3 2/2"
    options = replication_map(found)
    assert parse_replication("ks", tuple(options.items()), ()) == found
    every = parse_replication("ks", factors(("replication_factor", "3/1"), ("dc2", "2")), ("dc1", "dc2"))
    assert every.factor_texts == (("dc1", "3/1"), ("dc2", "2"))


def test_a_setting_without_witnesses_is_stored_as_ever() -> None:
    plain = Replication(TOPOLOGY, (("dc1", 3),))
    assert codec.encode(plain) == codec.encode([TOPOLOGY, [["dc1", 3]], []])
    assert not plain.has_witnesses and plain.factors is plain.counts
    named = Replication(TOPOLOGY, (("dc1", -1), ("dc1", 3)))
    assert codec.decoder(Replication).decode(codec.encode(named)).witnesses == {"dc1": 1}


@pytest.mark.parametrize("factor", ["3/2", "1/1", "3/4", "3/", "/1", "3/x", "2/2"])
def test_factors_of_which_a_quorum_may_have_no_data_are_refused(factor: str) -> None:
    with pytest.raises(Rejected):
        parse_replication("ks", factors(("dc1", factor)), ())


def test_a_simple_strategy_has_no_witnesses() -> None:
    options = (("class", "SimpleStrategy"), ("replication_factor", "3/1"))
    with pytest.raises(Rejected, match="numeric"):
        parse_replication("ks", options, ())


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ((keyspace(word=None),), "is untracked"),
        ((keyspace(word="untracked"),), "is untracked"),
        ((keyspace(), table("t", ("replication_type", "untracked"))), "it is untracked"),
        ((keyspace(), table("t", column="counter")), "counts"),
        ((SPREAD, table("t"), AlterKeyspace("ks", factors(("dc1", "3")))), "made with"),
        (
            (
                CreateKeyspace("ks", factors(("dc1", "3")), tablets=(), replication_type="tracked"),
                table("t"),
                AlterKeyspace("ks", factors(("dc1", "3/1"))),
            ),
            "made with",
        ),
        ((SPREAD, AlterKeyspace("ks", replication_type="untracked")), "is untracked"),
        ((keyspace(), AlterKeyspace("ks", replication_type="untracked")), "is untracked"),
        ((keyspace(), table("t"), AlterKeyspace("ks", factors(("dc1", "4/1")))), "added or removed"),
        ((keyspace(), table("t"), AlterKeyspace("ks", factors(("dc1", "2")))), "added or removed"),
        (
            (keyspace(("dc1", "5")), table("t"), AlterKeyspace("ks", factors(("dc1", "5/2")))),
            "one witness is added",
        ),
        (
            (
                keyspace(("dc1", "3")),
                table("t", column="counter"),
                AlterKeyspace("ks", factors(("dc1", "3/1"))),
            ),
            "counts",
        ),
        (
            (keyspace(), table("t"), AlterOptions("ks", "t", (("replication_type", "untracked"),))),
            "it is untracked",
        ),
    ],
)
def test_what_needs_rows_at_each_replica_is_refused_with_a_hint(
    changes: tuple[SchemaChange, ...], why: str
) -> None:
    *before, last = changes
    schema = applied(*before)
    with pytest.raises(Rejected, match=why) as refused:
        apply_change(schema, last, 9)
    assert refused.value.hint


def test_changes_are_captured_before_and_after_there_are_witnesses() -> None:
    made = applied(keyspace(), table("t", ("cdc", "true")))
    assert made.by_name["ks"].by_name["t"].options
    apply_change(applied(keyspace(), table("t")), AlterOptions("ks", "t", (("cdc", "true"),)), 9)
    plain = applied(keyspace(("dc1", "3")), table("t", ("cdc", "true")))
    refuse_change(plain.by_name["ks"], applied(keyspace()).by_name["ks"].replication)


def test_a_view_of_a_table_with_witnesses_is_refused() -> None:
    schema = applied(keyspace(), table("t"))
    keys = ("k", "v")
    view = CreateView(
        *("ks", "v", "00000000-0000-4000-8000-0000000000aa", "ks", "t", keys, ("v",), ("k",)), not_null=keys
    )
    with pytest.raises(Rejected, match="witnesses"):
        apply_change(schema, view, 9)


def test_what_does_not_touch_its_replicas_is_altered_as_ever() -> None:
    schema = applied(keyspace(), table("t"), AlterKeyspace("ks", durable_writes=False))
    assert schema.by_name["ks"].replication.witnesses == {"dc1": 1}
