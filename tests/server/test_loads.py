"""The door of bulk loads: who may ask, what cannot be read, and what keeps tombstones meanwhile."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from lockstep.metadata.loads import Load, Loads
from lockstep.node.data_service import oldest_hint_us
from lockstep.replica.load_messages import LoadFile
from lockstep.replica.load_requests import LookRequest
from lockstep.server.auth.permits import Session
from lockstep.server.statements.loads import LoadDoor
from lockstep.storage.rows import keys
from lockstep.streaming.load_target import require_in_table
from lockstep.values.codec import encode
from lockstep.values.errors import (
    InvalidRequest,
    ProtocolViolation,
    Rejected,
    ServerFault,
    StorageError,
    Unauthorized,
)
from lockstep.values.tokens import Range


def load(job: str = "a", time_us: int = 9_000_000) -> Load:
    return Load(job, "k", "t", 3, 4, 3, time_us, 5, 10_000)


def door(answer: Any, superusers: tuple[str, ...] | None = None) -> LoadDoor:
    def look(job: str) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer

    node: Any = SimpleNamespace(work=SimpleNamespace(bulk_loads=SimpleNamespace(look=look)))
    if superusers is None:
        return LoadDoor(node, None)
    access = SimpleNamespace(is_superuser=lambda user: user in superusers)
    permits: Any = SimpleNamespace(admit=lambda session: access)
    return LoadDoor(node, permits)


def ask(asked: LoadDoor, body: bytes = encode(LookRequest("a")), user: str | None = None) -> bytes:
    return asyncio.run(asked.answer(Session(5, user=user), body))


def test_superusers_alone_load_where_roles_count() -> None:
    assert ask(door(load())) == encode(load())
    assert ask(door(load(), ("ann",)), user="ann") == encode(load())
    for user in ("bob", None):
        with pytest.raises(Unauthorized, match="not a superuser"):
            ask(door(load(), ("ann",)), user=user)


def test_what_goes_wrong_is_told_as_clients_know_it() -> None:
    with pytest.raises(ProtocolViolation, match="Malformed LOAD"):
        ask(door(load()), b"\xff")
    with pytest.raises(Rejected, match="no load"):
        ask(door(Rejected("there is no load a")))
    with pytest.raises(ServerFault, match="disk"):
        ask(door(StorageError("the disk is full")))


def file(table_id: int, token: int, left: int, right: int) -> LoadFile:
    key = keys.row_key(keys.partition_prefix(table_id, token, b"k"), b"", 1, bytes(14))
    return LoadFile(0, 0, 0, left, right, 1, 10, key, key, b"")


def test_a_file_says_that_it_is_of_the_table_and_the_range() -> None:
    require_in_table(load(), file(3, 5, 0, 10))
    for wrong in (file(4, 5, 0, 10), file(3, 11, 0, 10), file(3, 0, 0, 10), file(3, 5, 10, 10)):
        with pytest.raises(InvalidRequest, match="not of the table"):
            require_in_table(load(), wrong)
    assert Range(0, 10).contains(10)


def test_rows_of_running_loads_are_among_what_may_still_come() -> None:
    def oldest(*loads: Load, hints: int | None = None) -> int | None:
        context: Any = SimpleNamespace(
            cluster=lambda: SimpleNamespace(loads=Loads(loads)),
            configuration=SimpleNamespace(timeouts=SimpleNamespace(write_ms=2000)),
        )
        kept: Any = SimpleNamespace(oldest_us=lambda: hints)
        return oldest_hint_us(context, kept, SimpleNamespace(oldest_us=lambda: None))  # type: ignore[arg-type]

    assert oldest() is None
    assert oldest(load(), load("b", 8_000_000)) == 6_000_000
    assert oldest(load(), hints=5_000_000) == 3_000_000
