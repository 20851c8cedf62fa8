"""What a local cluster waits for behind a start, for a while.

Neither ever fails: the status says what is not there yet.
"""

from __future__ import annotations

from typing import Final

from lockstep.local import processes
from lockstep.local.admin_client import AdminClient
from lockstep.values.errors import LockstepError

#: A new cluster's metadata group grows to its size within a fraction of this.
VOTERS_TIMEOUT_S: Final = 3.0
#: Tablets of a node that was replaced get a replica anew within this, unless others are away too.
TABLETS_TIMEOUT_S: Final = 30.0


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
