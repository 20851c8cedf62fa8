"""What a worker that evaluates user functions is asked and answers, and its answering.

Invariant: an answer depends on the question alone; an error inside a function is part of the answer, never an
exception here.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from lockstep.cql.user_code import compiled
from lockstep.cql.user_values import from_python, to_python
from lockstep.schema.types import CqlType, UserFields, parse_type_with
from lockstep.values import codec
from lockstep.values.errors import InvalidRequest

Arguments = tuple[bytes | None, ...]


class NamedType(msgspec.Struct, frozen=True, array_like=True):
    """A user-defined type that a function's types name, directly or inside others."""

    name: str
    fields: tuple[str, ...]
    types: tuple[str, ...]


class Code(msgspec.Struct, frozen=True, array_like=True):
    """A function as it is evaluated; types are canonical texts."""

    keyspace: str
    name: str
    argument_names: tuple[str, ...]
    argument_types: tuple[str, ...]
    returns: str
    body: str
    called_on_null: bool
    types: tuple[NamedType, ...] = ()

    @property
    def text(self) -> str:
        """For messages: the qualified name and the types of its arguments."""
        return f"{self.keyspace}.{self.name}[{', '.join(self.argument_types)}]"


class Calls(msgspec.Struct, frozen=True, array_like=True, tag="calls"):
    """Calls of one function; each is answered with one value."""

    code: Code
    calls: tuple[Arguments, ...]


class Fold(msgspec.Struct, frozen=True, array_like=True, tag="fold"):
    """A state folded over rows by a state function; the answer is one value, the last state."""

    code: Code
    state: bytes | None
    rows: tuple[Arguments, ...]


class Outcome(msgspec.Struct, frozen=True, array_like=True):
    """`failures`: (index of a call, what went wrong); its value is null. A fold has index 0."""

    values: tuple[bytes | None, ...]
    failures: tuple[tuple[int, str], ...] = ()


_DECODER = codec.decoder(Calls | Fold)  # type: ignore[arg-type]
OUTCOMES = codec.decoder(Outcome)


def handle(question: bytes) -> bytes:
    """The answer to one encoded Calls or Fold."""
    asked: Calls | Fold = _DECODER.decode(question)
    return codec.encode(_fold(asked) if isinstance(asked, Fold) else _calls(asked))


class _Callable:
    """A function ready to be called with serialised arguments."""

    def __init__(self, code: Code) -> None:
        found = {named.name: named for named in code.types}

        def resolve(keyspace: str | None, name: str) -> UserFields | None:
            named = found.get(name)
            if named is None:
                return None
            kinds = tuple(parse_type_with(text, resolve) for text in named.types)
            return UserFields(code.keyspace, named.fields, kinds)

        self._kinds: list[CqlType] = [parse_type_with(text, resolve) for text in code.argument_types]
        self._returns = parse_type_with(code.returns, resolve)
        self._run: Callable[..., Any] = compiled(code.argument_names, code.body)

    def __call__(self, arguments: Sequence[bytes | None]) -> bytes | None:
        given = [to_python(kind, data) for kind, data in zip(self._kinds, arguments, strict=True)]
        return from_python(self._returns, self._run(*given))


#: Functions that are called again and again; a worker serves one keyspace.
_ready = functools.lru_cache(maxsize=256)(_Callable)


def _calls(asked: Calls) -> Outcome:
    values: list[bytes | None] = []
    failures: list[tuple[int, str]] = []
    try:
        function = _ready(asked.code)
    except Exception as error:
        why = described(error)
        return Outcome((None,) * len(asked.calls), tuple((at, why) for at in range(len(asked.calls))))
    for index, arguments in enumerate(asked.calls):
        value = None
        try:
            value = function(arguments)
        except Exception as error:
            failures.append((index, described(error)))
        values.append(value)
    return Outcome(tuple(values), tuple(failures))


def _fold(asked: Fold) -> Outcome:
    code, state = asked.code, asked.state
    try:
        function = _ready(code)
        for row in asked.rows:
            # As Cassandra: a row with a null is skipped, and a null state stays null.
            if code.called_on_null or None not in row:
                takes = code.called_on_null or state is not None
                state = function((state, *row)) if takes else None
    except Exception as error:
        return Outcome((None,), ((0, described(error)),))
    return Outcome((state,))


def described(error: Exception) -> str:
    """What went wrong, for a client: errors of functions have no long texts."""
    if isinstance(error, InvalidRequest):
        text = error.message
    else:
        try:
            text = f"{type(error).__name__}: {error}"
        except Exception:
            text = type(error).__name__  # It does not even tell about itself.
    # Half a character is text to Python, and cannot be sent.
    return text[:1000].encode("utf-8", "backslashreplace").decode("utf-8")
