"""Guards of sessions: given while open, counted until released, told of once the session is closed."""

from __future__ import annotations

import msgspec
import pytest

from lockstep.metadata.cluster import empty_cluster
from lockstep.metadata.operations import OPERATIONS, Session, Stage
from lockstep.replica.session_guards import SessionGuards
from lockstep.values.errors import SessionClosed

SESSION = Session("operation-1-write_both_read_old", 1, Stage.WRITE_BOTH_READ_OLD, 5)


class Metadata:
    def __init__(self) -> None:
        self.value = empty_cluster().changed(
            OPERATIONS.set(msgspec.structs.replace(empty_cluster().running, sessions=(SESSION,)))
        )

    def close(self) -> None:
        self.value = self.value.changed(
            OPERATIONS.set(msgspec.structs.replace(self.value.running, sessions=()))
        )


def test_a_guard_outlives_its_session_and_is_told_of_until_it_is_released() -> None:
    metadata = Metadata()
    guards = SessionGuards(lambda: metadata.value)
    with guards.hold(SESSION.id):
        assert guards.stragglers() == ()
        with guards.hold(SESSION.id):
            metadata.close()
            assert guards.stragglers() == ((SESSION.id, 2),)
        assert guards.stragglers() == ((SESSION.id, 1),)
    assert guards.stragglers() == ()


def test_no_guard_is_given_once_the_session_is_closed() -> None:
    metadata = Metadata()
    guards = SessionGuards(lambda: metadata.value)
    metadata.close()
    with pytest.raises(SessionClosed), guards.hold(SESSION.id):
        raise AssertionError("it had an effect")
    assert guards.stragglers() == ()


def test_a_failed_effect_releases_its_guard() -> None:
    metadata = Metadata()
    guards = SessionGuards(lambda: metadata.value)
    with pytest.raises(KeyError), guards.hold(SESSION.id):
        raise KeyError
    metadata.close()
    assert guards.stragglers() == ()
