"""Planted bugs of roles, and of what must be refused whatever else is under way."""

from __future__ import annotations

import contextlib
from typing import Any

from lockstep.metadata import transformations
from lockstep.metadata.access.roles import Access
from lockstep.sim.plant import Planted
from lockstep.sim.replaced import replaced
from lockstep.values.hash_tree import key_of_text


def _grants_outlive_roles() -> contextlib.AbstractContextManager[None]:
    """A role is dropped, and what it was granted and is a member of stays for the next one of its name."""

    def forgetful(self: Any, name: str) -> Access:
        return Access(self.roles.without(key_of_text(name)), self.grants)

    return replaced((Access, "without_role", forgetful))


def _long_names_taken() -> contextlib.AbstractContextManager[None]:
    """The metadata keeps whatever it is given."""
    return replaced((transformations, "EXTENSION_NAME_CHARACTERS_MAX", 1 << 20))


ACCESS = (
    Planted(
        "grants_outlive_roles",
        "a new role inherits what another was granted",
        "access",
        _grants_outlive_roles,
    ),
    Planted("long_names_taken", "what is wrong is accepted", "access", _long_names_taken),
)
