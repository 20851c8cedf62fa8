"""What operators may ask of a node's table files: to check them all.

Invariant: asking begins a check unless one is under way; what it found stays until the next one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from lockstep.node.scrubbing import ScrubState
from lockstep.server.answers import get, now
from lockstep.server.operations import Operation

if TYPE_CHECKING:
    from lockstep.node.node import Node

PATH: Final = "/v1/scrub"


def operations(node: Node) -> list[Operation]:
    """For the admin API."""
    return [
        get(
            PATH,
            "The last check of this node's table files",
            now(lambda *_: _document(node, node.scrub.state)),
        ),
        Operation(
            "POST",
            PATH,
            "Check every table file of this node against its checksums, in the background",
            now(lambda *_: _document(node, node.scrub.begin())),
            "How far it is",
        ),
    ]


def _document(node: Node, state: ScrubState) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.to_builtins(state)
    return {"schema": "scrub/1", "node": node.node_id, **found}
