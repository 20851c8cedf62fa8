"""The processor of a node that never takes part in the metadata service: submissions are others' to judge.

Invariant: it appends nothing and claims nothing; submissions made on such a node are forwarded to the voters
(node.submission), and those that others send here are answered NotLeader.
"""

from __future__ import annotations

from lockstep.node.messages import Submit
from lockstep.node.processors.base import Processor, Settle
from lockstep.values.errors import NotLeader


class RemoteProcessor(Processor):
    def take(self, submit: Submit, settle: Settle) -> None:
        settle(NotLeader(None))

    def leading_term(self) -> int:
        raise NotLeader(None)
