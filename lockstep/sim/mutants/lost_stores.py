"""Planted bugs of lost stores: what a start notices, and what nodes answer before they are filled."""

from __future__ import annotations

import contextlib

from lockstep.node import node as node_module
from lockstep.node import recovering as recovering_module
from lockstep.node.work.lacking import Lacking
from lockstep.sim.plant import Planted
from lockstep.sim.replaced import replaced
from lockstep.storage.lacking import lacking_record
from lockstep.storage.model import ModelStore

_Context = contextlib.AbstractContextManager[None]


def _member_without_store() -> _Context:
    """A start takes a store that is gone for one that never was."""
    return replaced(
        (node_module, "refuse_lost_store", lambda *_: None), (ModelStore, "_refuse_lost", lambda _self: None)
    )


def _lacking_answers() -> _Context:
    """A node answers from what it has before it is filled."""
    return replaced((Lacking, "require", lambda *_: None))


def _recovered_lacks_nothing() -> _Context:
    """An empty store takes the old one's place and says nothing of it."""
    return replaced((recovering_module, "lacking_record", lambda _lacks: lacking_record(())))


LOST_STORES = (
    Planted("member_without_store", "a store that is gone is made anew", "stores", _member_without_store),
    Planted("lacking_answers", "reads miss what is not filled yet", "stores", _lacking_answers),
    Planted("recovered_lacks_nothing", "an empty replica counts", "stores", _recovered_lacks_nothing),
)
