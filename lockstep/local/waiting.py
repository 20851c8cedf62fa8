"""What a local cluster waits for at a start and behind it, for a while.

Nothing here ever fails: the status says what is not there yet.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from lockstep.local import processes
from lockstep.local.admin_client import AdminClient
from lockstep.values.errors import LockstepError

#: A new cluster's metadata group grows to its size within a fraction of this.
VOTERS_TIMEOUT_S: Final = 3.0
#: Tablets of a node that was replaced get a replica anew within this, unless others are away too.
TABLETS_TIMEOUT_S: Final = 30.0
#: However the topology moves: a start that takes longer is looked at by people.
MOVING_TIMEOUT_S: Final = 3600.0
#: What of a request's progress grows or shrinks with what is done, and with nothing else.
_DONE: Final = ("bytes", "fragments", "files_done", "ranges_done", "tables_done", "tablets_left")


def await_moving(condition: Callable[[], bool], timeout_s: float, admin: Callable[[], AdminClient]) -> bool:
    """As `processes.wait_until`, whose time begins anew when the topology has moved meanwhile: a node that
    joins has its turn behind others, and streams for as long as there is data."""
    moved, left_s = _moved(admin), MOVING_TIMEOUT_S
    while not processes.wait_until(condition, timeout_s):
        before, moved, left_s = moved, _moved(admin), left_s - timeout_s
        if moved == before or left_s <= 0:
            return False
    return True


def _moved(admin: Callable[[], AdminClient]) -> list[object]:
    """How far requests that change the topology have got, equal while they get no further."""
    try:
        running: list[dict[str, Any]] = admin().get("/v1/status").get("operations", [])
    except LockstepError:
        return []
    return [(one["id"], one["stage"], *map(one["progress"].get, _DONE)) for one in running]


def await_voters(admin: AdminClient) -> None:
    """Until those vote on metadata who should, so that a node may be lost at once. With nodes stopped on
    purpose there may be nobody to vote."""

    def settled() -> bool:
        try:
            return bool(admin.get("/v1/cms/reconfiguration").get("settled"))
        except LockstepError:
            return True

    processes.wait_until(settled, VOTERS_TIMEOUT_S)


def await_tablets(admin: AdminClient, replaced: int) -> None:
    """Until the tablets of a node that was replaced have other replicas, so that the next one may be lost.
    With others away they may wait for those."""
    lacking = ("TABLETS_LACK_REPLICAS", f"node {replaced}")

    def built() -> bool:
        try:
            conditions = admin.get("/v1/status").get("conditions", [])
        except LockstepError:
            return False
        return lacking not in {(one["code"], one["subject"]) for one in conditions}

    processes.wait_until(built, TABLETS_TIMEOUT_S)
