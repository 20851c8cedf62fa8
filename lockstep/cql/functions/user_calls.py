"""Calls of user functions while a request is worked out: what is known of them, and what has to be asked.

A function is not evaluated here: a call whose result is not known is noted and passes for null, and when the
request has been worked out that far, whoever runs it has what was noted evaluated and works the request out
again, from the same readings of clock and randomness. Invariant: while anything is noted, what came out means
nothing; a result holds for all equal calls of one request.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from lockstep.cql.functions.user_batches import Arguments, Calls, Code, Fold
from lockstep.values.errors import FunctionFailure, InvalidRequest
from lockstep.values.limits import (
    USER_CALLS_AT_ONCE_MAX,
    USER_CALLS_MAX,
    USER_FOLD_ROWS_AT_ONCE_MAX,
)


class Folded(tuple[Code, bytes | None, tuple[Arguments, ...]]):
    """A fold as it is known: the state function, the initial state, the rows."""

    __slots__ = ()


Call = tuple[Code, Arguments] | Folded


class UserCalls:
    """`is_final`: nothing is asked any more, and a call that is not known is an error."""

    def __init__(self) -> None:
        self.is_final = False
        self._known: dict[Call, bytes | FunctionFailure | None] = {}
        self._noted: dict[Call, None] = {}
        self._drawn: list[bytes] = []

    @property
    def waits(self) -> bool:
        """Whether anything is noted."""
        return bool(self._noted)

    def again(self, source: Callable[[], bytes]) -> Callable[[], bytes]:
        """Draws from `source` what was not drawn before, and before that what was."""
        drawn, at = self._drawn, 0

        def draw() -> bytes:
            nonlocal at
            if at == len(drawn):
                drawn.append(source())
            at += 1
            return drawn[at - 1]

        return draw

    def call(self, code: Code, arguments: Arguments) -> bytes | None:
        """The result of a call, or null when it is only noted. FunctionFailure."""
        return self._result((code, arguments))

    def fold(self, code: Code, state: bytes | None, rows: tuple[Arguments, ...]) -> bytes | None:
        """As `call`, for the last state of a fold."""
        return self._result(Folded((code, state, rows))) if rows else state

    def _result(self, call: Call) -> bytes | None:
        if call in self._known:
            found = self._known[call]
            if isinstance(found, FunctionFailure):
                raise FunctionFailure(found.message, found.keyspace, found.function, found.arguments)
            return found
        if self.is_final:
            raise InvalidRequest(
                f"In a conditional statement the arguments of function {call[0].text} cannot change "
                "between two evaluations"
            )
        if len(self._known) + len(self._noted) >= USER_CALLS_MAX:
            raise InvalidRequest(f"A request can make at most {USER_CALLS_MAX} calls of user functions")
        self._noted[call] = None
        return None

    def take(self) -> list[Call]:
        """What is noted, which is then the taker's to have answered."""
        taken, self._noted = list(self._noted), {}
        return taken

    def learn(self, results: Mapping[Call, bytes | FunctionFailure | None]) -> None:
        self._known.update(results)


def call_batches(calls: list[Call]) -> list[list[tuple[Code, Arguments]]]:
    """The calls among these in batches of one function each."""
    by_code: dict[Code, list[tuple[Code, Arguments]]] = {}
    for call in calls:
        if not isinstance(call, Folded):
            by_code.setdefault(call[0], []).append(call)
    size = USER_CALLS_AT_ONCE_MAX
    return [found[at : at + size] for found in by_code.values() for at in range(0, len(found), size)]


def question(batch: list[tuple[Code, Arguments]]) -> Calls:
    return Calls(batch[0][0], tuple(arguments for _, arguments in batch))


def fold_questions(fold: Folded) -> list[Fold]:
    """The questions that a fold takes one after the other; each but the first gets its state from the one
    before it."""
    code, state, rows = fold
    size = USER_FOLD_ROWS_AT_ONCE_MAX
    return [Fold(code, state, rows[at : at + size]) for at in range(0, len(rows), size)]


def failure(code: Code, why: str) -> FunctionFailure:
    return FunctionFailure(
        f"execution of '{code.text}' failed: {why}", code.keyspace, code.name, code.argument_types
    )
