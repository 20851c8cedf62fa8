"""Which nodes may go to a repaired cluster."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from lockstep.metadata.directory import Identity, Reset
from lockstep.recovery.fences import Target, judge
from lockstep.values.errors import Rejected

OLD = Identity("a", "test", ("a",))


def repair(id_: str, epoch: int) -> Reset:
    return Reset(id_, "reset", "operator", epoch, b"%d" % epoch, 1)


#: Reset twice, after epochs 10 and 20.
TARGET = Target(
    "test", ("a", "b", "c"), (repair("b", 10), repair("c", 20)), tuple((n, b"%d" % n) for n in (7, 8, 9, 15))
)


@pytest.mark.parametrize(
    ("identity", "repairs", "epoch", "text"),
    [
        (OLD, (), 10, None),
        (OLD, (), 8, None),
        (Identity("b", "test", ("a", "b")), (repair("b", 10),), 20, None),
        (Identity("b", "test", ("a", "b")), (repair("b", 10),), 15, None),
        (OLD, (), 11, "it applied entries 11 to 11"),
        (OLD, (), 30, "it applied entries 11 to 30"),
        (Identity("b", "test", ("a", "b")), (repair("b", 10),), 21, "it applied entries 21 to 21"),
        (OLD, (), 5, "nothing says whether"),
        (Identity("c", "test", TARGET.lineage), TARGET.repairs, 25, "belongs to that cluster already"),
        (Identity("d", "test", ("a", "b", "c", "d")), (*TARGET.repairs, repair("d", 30)), 31, "a former one"),
        (Identity("x", "test", ("x",)), (), 5, "nothing in common"),
        (Identity("e", "test", ("a", "e")), (repair("e", 9),), 12, "repaired apart from each other"),
        (Identity("b", "test", ("a", "b")), (repair("b", 9),), 12, "repaired apart from each other"),
        (Identity("a", "other", ("a",)), (), 10, "that is cluster 'test'"),
    ],
)
def test_18_who_may_go(identity: Identity, repairs: tuple[Reset, ...], epoch: int, text: str | None) -> None:
    fenced = judge(identity, repairs, epoch, b"%d" % epoch, TARGET)
    if text is None:
        assert fenced is None
        return
    assert fenced is not None and text in fenced.reason
    assert bool(fenced.diverged_at) == ("it applied" in text)


@pytest.mark.parametrize(("epoch", "said"), [(10, 10), (9, 9), (7, 7)])
def test_15_the_chain_decides_not_the_epoch(epoch: int, said: int) -> None:
    fenced = judge(OLD, (), epoch, b"another", TARGET)
    assert fenced is not None and fenced.diverged_at == said and "another entry" in fenced.reason


@pytest.mark.parametrize(
    "changed", [{"lineage": ()}, {"lineage": ("a", "b")}, {"lineage": ("a", "c", "b")}, {"repairs": ()}]
)
def test_a_target_that_contradicts_itself_is_refused(changed: dict[str, Any]) -> None:
    with pytest.raises(Rejected, match="does not name what began"):
        judge(OLD, (), 10, b"10", msgspec.structs.replace(TARGET, **changed))
