"""Which nodes may go to a repaired cluster."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

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


@pytest.mark.parametrize(
    ("epoch", "differs_from", "at"),
    [
        (10, 11, 0),
        (10, 10, 10),
        (10, 9, 9),
        (10, 8, 8),
        (10, 7, 7),
        (10, 2, 7),
        (8, 3, 7),
        (12, 9, 9),
        (12, 11, 11),
    ],
)
def test_10_the_first_entry_that_differs_is_found(epoch: int, differs_from: int, at: int) -> None:
    """A node that keeps all its hashes, and the repaired cluster those of 7 to 10."""

    def own(one: int) -> bytes:
        return b"%d" % one if one < differs_from else b"own %d" % one

    fenced = judge(OLD, (), epoch, own(epoch), TARGET, own)
    assert (fenced.diverged_at if fenced is not None else 0) == at
    if fenced is not None and at <= 10:
        assert (fenced.own_hash, fenced.other_hash, fenced.only_more) == (own(at), b"%d" % at, False)


def test_13_who_has_more_and_nothing_else_is_told_so() -> None:
    def own(one: int) -> bytes | None:
        return b"%d" % one

    fenced = judge(OLD, (), 13, own(13) or b"", TARGET, own)
    assert fenced is not None and fenced.only_more and fenced.diverged_at == 11
    assert "applied entries 11 to 13" in fenced.reason
    forgot = judge(OLD, (), 13, own(13) or b"", TARGET, lambda one: None if one == 10 else own(one))
    assert forgot is not None and not forgot.only_more, "nothing says that it has the same entry at the fork"


@pytest.mark.parametrize(
    ("kept", "text"), [((4,), None), ((), "nothing says whether"), ((3,), "another entry")]
)
def test_14_below_what_is_kept_a_checkpoint_decides(kept: tuple[int, ...], text: str | None) -> None:
    """The repaired cluster keeps the hashes of 3 and 4, and the node is at 5."""
    target = msgspec.structs.replace(
        TARGET, hashes=((3, b"another"), *TARGET.hashes) if kept == (3,) else ((4, b"4"), *TARGET.hashes)
    )
    fenced = judge(OLD, (), 5, b"5", target, lambda one: b"%d" % one if one in kept else None)
    assert fenced is None if text is None else fenced is not None and text in fenced.reason


@given(
    shared=st.integers(0, 30),
    epoch=st.integers(1, 30),
    fork=st.integers(1, 30),
    told=st.sets(st.integers(1, 30)),
    kept=st.sets(st.integers(1, 30)),
)
def test_what_is_found_is_what_a_look_at_each_epoch_finds(
    shared: int, epoch: int, fork: int, told: set[int], kept: set[int]
) -> None:
    def own(one: int) -> bytes:
        return b"%d" % one if one <= shared else b"own %d" % one

    target = Target(
        "test",
        ("a", "b"),
        (Reset("b", "reset", "operator", fork, b"%d" % fork, 1),),
        tuple((one, b"%d" % one) for one in sorted(told) if one <= fork),
    )
    fenced = judge(OLD, (), epoch, own(epoch), target, lambda one: own(one) if one in kept else None)
    both = [
        one for one in ({*told} & {*range(1, fork + 1)}) | {fork} if one in kept | {epoch} and one <= epoch
    ]
    differing = [one for one in both if own(one) != b"%d" % one]
    if differing:
        assert fenced is not None and fenced.diverged_at == min(differing) and not fenced.only_more
    elif epoch > fork:
        assert fenced is not None and fenced.diverged_at == fork + 1 and fenced.only_more == (fork in both)
    else:
        assert (fenced is None) == bool(both)
