"""What a node says of itself when the groups are to be repaired.

Invariant: it tells of what is durable there, and of nobody else but who leads.
"""

from __future__ import annotations

import msgspec


class Survey(msgspec.Struct, frozen=True, array_like=True):
    """What a node says of itself. `epoch` and `hash`: of the last entry it applied. `log_epoch`, `log_term`:
    of the last one that is durable there. `raft_index`: of its member of the metadata group, 0 where it has
    none. `raft_term`: the newest that its member of either group knows. `leader`: whom it knows to lead the
    metadata group, 0 for nobody; `management_leader` the same of the other group. `expelled`: hosts that its
    member of the management group knows to be out for good."""

    node: int
    cluster_id: str
    epoch: int
    hash: bytes
    log_epoch: int
    log_term: int
    raft_index: int = 0
    raft_term: int = 0
    leader: int = 0
    expelled: tuple[str, ...] = ()
    management_leader: int = 0

    @property
    def freshness(self) -> tuple[int, int]:
        assert self.log_epoch >= self.epoch, "what was applied is durable"
        return (self.log_term, self.log_epoch)
