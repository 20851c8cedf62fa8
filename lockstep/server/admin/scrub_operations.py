"""What operators may ask of a node's table files: to check them all.

Invariant: asking begins a check unless one is under way; what it found stays until the next one.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from lockstep.node.services import NodeServices
from lockstep.node.work.scrubbing import ScrubState
from lockstep.server.admin.answers import get, now
from lockstep.server.admin.operations import Operation

PATH: Final = "/v1/scrub"


def operations(node: NodeServices) -> list[Operation]:
    """For the admin API."""
    return [
        get(
            PATH,
            "The last check of this node's table files",
            now(lambda *_: _document(node, node.data.scrub.state)),
        ),
        Operation(
            "POST",
            PATH,
            "Check every table file of this node against its checksums, in the background",
            now(lambda *_: _document(node, node.data.scrub.begin())),
            "How far it is",
        ),
    ]


def _document(node: NodeServices, state: ScrubState) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.to_builtins(state)
    return {"schema": "scrub/1", "node": node.context.own_id(), **found}
