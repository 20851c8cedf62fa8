"""What this node has, as repairs of the groups ask for it."""

from __future__ import annotations

from lockstep.metadata.log.entries import LogEntry
from lockstep.node.context import NodeContext
from lockstep.node.log.metadata_store import committed_after
from lockstep.node.log_service import NodeLog
from lockstep.node.membership.management import Management
from lockstep.node.processors.raft import logged_entries
from lockstep.node.recovery.journals import Position, position_in
from lockstep.recovery.survey import Survey
from lockstep.values.errors import CannotApply, PreconditionError
from lockstep.values.node_limits import RECOVERY_TAIL_BYTES_MAX


class OwnState:
    def __init__(self, context: NodeContext, log: NodeLog, management: Management) -> None:
        self._own_id = context.own_id
        self._disk = context.runtime.disk
        self._log = log
        self._management = management

    def survey(self) -> Survey:
        """CannotApply when this node can apply no more: what it holds is not to be gone on with."""
        state = self._log.state
        if state.broken is not None:
            raise CannotApply(f"the metadata of node {self._own_id()} is broken: {state.broken}")
        return self.survey_of()

    def survey_of(self) -> Survey:
        """The same of a node that may be broken."""
        state = self._log.state
        cluster, driver = state.current, self._log.driver
        kept = state.retained(cluster.epoch, cluster.epoch)
        tail = self.tail(cluster.epoch)
        last = tail[-1] if tail else None
        group = self._management.group
        managing = group.driver if group is not None else None
        # Who came up broken takes part in nothing, and its journals have what it promised.
        aside = position_in(self._disk) if driver is None and state.broken is not None else Position()
        return Survey(
            node=self._own_id(),
            cluster_id=cluster.identity.cluster_id,
            epoch=cluster.epoch,
            hash=cluster.hash,
            log_epoch=last.epoch if last is not None else cluster.epoch,
            log_term=last.term if last is not None else (kept[-1].term if kept else 0),
            raft_index=driver.raft.last_index if driver is not None else aside.index,
            raft_term=max([one.raft.term for one in (driver, managing) if one is not None] + [aside.term]),
            leader=(driver.raft.leader or 0) if driver is not None else 0,
            expelled=group.state.expelled if group is not None else (),
            management_leader=(managing.raft.leader or 0) if managing is not None else 0,
        )

    def tail(self, epoch: int) -> list[LogEntry]:
        """Entries above the epoch that are durable in this node's journal of the group, in order."""
        driver = self._log.driver
        if driver is None:
            # Of a node that came up broken and takes part in nothing: what it cannot apply.
            return committed_after(self._disk, epoch) if self._log.state.broken is not None else []
        found: list[LogEntry] = []
        size, raft = 0, driver.raft
        for index in range(raft.durable_index, raft.first_index - 1, -1):
            logged = logged_entries((raft.entry(index),))
            if not logged:
                continue
            if logged[0].epoch <= epoch:
                break
            size += len(logged[0].body)
            if size > RECOVERY_TAIL_BYTES_MAX:
                raise PreconditionError(
                    f"the log of node {self._own_id()} has more than {RECOVERY_TAIL_BYTES_MAX} bytes that no "
                    "node has applied"
                )
            found.append(logged[0])
        return found[::-1]
