"""What a native function is: its types, what it does to serialised values, and families of functions.

Invariant: a function is pure in its argument bytes and the Context. A null argument gives null, unless the
function `takes_null`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from lockstep.cql.compile.context import Context
from lockstep.schema.types import CqlType
from lockstep.values.errors import InvalidRequest

Arguments = Sequence[bytes]
Run = Callable[[Any, Context], bytes | None]
#: Type of an argument, or None when only the function can tell (a bind variable, null, a collection).
Known = CqlType | None


class Function(msgspec.Struct, frozen=True):
    """One overload. `pure` means the Context is not used, so constant arguments give a constant."""

    name: str
    arguments: tuple[CqlType, ...]
    returns: CqlType
    run: Run
    pure: bool = True
    takes_null: bool = False


class Family(msgspec.Struct, frozen=True):
    """Functions of one name whose types follow from the arguments'.

    `build(name, known types of the arguments, wanted result type or None)` is called with `least` to `most`
    arguments; InvalidRequest when they do not fit. `about`: arguments and result, for people.
    """

    name: str
    least: int
    most: int
    build: Callable[[str, Sequence[Known], Known], Function]
    about: str = ""

    def __post_init__(self) -> None:
        assert self.name == self.name.lower(), "names of functions are lower case"
        assert 0 <= self.least <= self.most, "a function takes no less than its least arguments"

    def function(self, known: Sequence[Known], wanted: Known) -> Function:
        if not self.least <= len(known) <= self.most:
            required = str(self.least) if self.least == self.most else f"{self.least} to {self.most}"
            raise InvalidRequest(
                f"Invalid number of arguments in call to function {self.name}: "
                f"{required} required but {len(known)} provided"
            )
        built = self.build(self.name, known, wanted)
        assert len(built.arguments) == len(known), "each argument has its type"
        return built


def unfit(name: str, argument: Known, what: str) -> InvalidRequest:
    """The error for an argument that a function cannot take."""
    if argument is None:
        return InvalidRequest(f"Cannot infer type of argument of function {name} (try using a cast)")
    return InvalidRequest(
        f"Invalid call to function {name}: argument of type {argument.text} where {what} is required"
    )
