"""The short way of rows whose keys and values are all bound, alone and in batches: the same mutations and the
same refusals as the way of all other statements."""

from __future__ import annotations

import msgspec
import pytest

from lockstep.cql.bind.modify import plan_batch, plan_modification
from lockstep.cql.compile.modification import ModificationPlan
from lockstep.cql.wire.messages import UNSET
from lockstep.values.errors import InvalidRequest
from tests.cql.twin import Session

TABLE = "CREATE TABLE t (k int, c int, d text, a int, b text, PRIMARY KEY (k, c, d))"
INSERT = "INSERT INTO t (k, c, d, b, a) VALUES (?, ?, ?, ?, ?)"
UPDATE = "UPDATE t SET b = ?, a = ? WHERE k = ? AND c = ? AND d = ?"
ONE, TWO = b"\0\0\0\1", b"\0\0\0\2"


def both_ways(text: str) -> tuple[Session, object, object]:
    """A statement as it is prepared, and the same without its short way."""
    session = Session(TABLE)
    prepared = session.prepare(text)
    plan = prepared.plan
    assert isinstance(plan, ModificationPlan) and plan.steps is not None
    long = msgspec.structs.replace(prepared, plan=msgspec.structs.replace(plan, steps=None))
    return session, prepared, long


@pytest.mark.parametrize(
    "values", [(b"text", TWO), (None, TWO), (UNSET, TWO), (b"text", None), (UNSET, UNSET), (b"", UNSET)]
)
@pytest.mark.parametrize("text", [INSERT, UPDATE])
def test_both_ways_write_the_same(text: str, values: tuple) -> None:
    session, short, long = both_ways(text)
    given = [ONE, TWO, b"d", *values] if text is INSERT else [*values, ONE, TWO, b"d"]
    context = session.context()
    wanted = plan_modification(long, given, context)
    assert plan_modification(short, given, context) == wanted
    assert plan_batch([(short, given)], context) == wanted == plan_batch([(long, given)], context)
    assert plan_batch([(short, given)] * 2, context) == plan_batch([(long, given)] * 2, context)


@pytest.mark.parametrize("at", range(5))
@pytest.mark.parametrize("value", [None, UNSET, b"\xff\xff\xff"])
def test_both_ways_refuse_the_same(at: int, value: object) -> None:
    session, short, long = both_ways(INSERT)
    given = [ONE, TWO, b"d", b"text", TWO]
    given[at] = value
    context, told = session.context(), []
    for prepared in (short, long):
        try:
            told.append(plan_batch([(prepared, given)], context))
        except InvalidRequest as error:
            told.append(error.message)
    assert told[0] == told[1]
