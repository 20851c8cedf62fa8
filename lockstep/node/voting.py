"""This node's part in both consensus groups: when it begins, and when it ends.

Invariant: who takes part is said by the metadata, and before there is any by the founders' file.
"""

from __future__ import annotations

from lockstep.node.log_service import NodeLog
from lockstep.node.membership.management import Management


class Voting:
    def __init__(self, log: NodeLog, management: Management) -> None:
        self._log = log
        self._management = management
        log.member.ends.add(self.follow)

    def take_part(self) -> None:
        """Take part in both groups, if this node is a member; may be called repeatedly."""
        self._management.take_part()
        self._log.member.take_part()

    def follow(self) -> None:
        """The metadata says who takes part in consensus: begin or end this node's part."""
        cluster = self._log.cluster
        if not cluster.epoch:
            return
        if self._log.context.own_id() in cluster.service.members:
            self.take_part()
        else:
            self._log.member.give_up_part()
