"""Work beside the loop: calls of user functions, evaluated in workers between two goes at working a request
out, and long statements, read and planned one after the other.

Invariant: nothing that was worked out while a result was missing leaves this module; the loop of the node
never runs a user function. What is planned on the loop has at most STATEMENT_INLINE_CHARACTERS of text and
VALUES_INLINE_BYTES of values; of what is longer one is planned at a time, so that other blocking calls find
threads, and at most PLANNED_ASIDE_QUEUED_MAX wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Final, TypeVar

from lockstep.cql.compile.context import Context, Lists
from lockstep.cql.compile.prepared import Prepared
from lockstep.cql.ddl.function_ddl import check_initial
from lockstep.cql.functions.user_batches import OUTCOMES, Arguments, Calls, Code, Fold, Outcome, compiled
from lockstep.cql.functions.user_calls import (
    Call,
    Folded,
    UserCalls,
    call_batches,
    failure,
    fold_questions,
    question,
)
from lockstep.cql.wire.messages import Value
from lockstep.node.services import NodeServices
from lockstep.runtime.ports import Tasks, WorkersRefused
from lockstep.schema.changes import SchemaChange
from lockstep.schema.function_changes import CreateAggregate, CreateFunction
from lockstep.values import codec
from lockstep.values.errors import FunctionFailure, InvalidRequest, LockstepError, Overloaded
from lockstep.values.limits import USER_CALL_ROUNDS_MAX
from lockstep.values.node_limits import (
    PLANNED_ASIDE_QUEUED_MAX,
    ROW_CELLS_INLINE,
    STATEMENT_INLINE_CHARACTERS,
    VALUES_INLINE_BYTES,
)

T = TypeVar("T")
#: What the production's workers answer with.
WORKERS_HANDLER: Final = "lockstep.cql.functions.user_batches:handle"
_DISABLED: Final = (
    "User-defined functions are disabled in lockstep.toml - set user_defined_functions_enabled=true to enable"
)


class UserFunctions:
    def __init__(self, node: NodeServices) -> None:
        self._node = node
        self._settings = node.context.configuration.functions
        self.aside = LongStatements(node.context.runtime.tasks)

    def check(self, change: SchemaChange) -> None:
        """InvalidRequest for a function or aggregate that could not be evaluated, as far as can be told."""
        if isinstance(change, CreateAggregate):
            space = self._node.log.cluster.schema.by_name.get(change.keyspace)
            if space is not None:
                check_initial(change, space)
        if not isinstance(change, CreateFunction):
            return
        if not self._settings.user_defined_functions_enabled:
            raise InvalidRequest(_DISABLED)
        if change.language != "python":
            raise InvalidRequest(
                f"Currently only Python user-defined functions are available: language '{change.language}' "
                "is not"
            )
        try:
            compiled([name for name, _ in change.arguments], change.body)
        except InvalidRequest as error:
            raise InvalidRequest(
                f"Could not compile function '{change.keyspace}.{change.name}' from Python source: "
                f"{error.message}"
            ) from None

    async def settled(
        self,
        context: Context,
        called: Sequence[object],
        work: Callable[[Context], T],
        *,
        is_long: bool = False,
    ) -> T:
        """What `work` gives with the results of all calls that it makes. `called` empty: it makes none.
        `is_long`: it is not done on the loop.

        The errors of `work`, FunctionFailure, Overloaded."""
        if not called:
            return await self.aside.run(lambda: work(context)) if is_long else work(context)
        return await self.settled_with(UserCalls(), context, work)

    async def settled_with(self, calls: UserCalls, context: Context, work: Callable[[Context], T]) -> T:
        """As `settled`; `calls` knows the results afterwards."""
        for _ in range(USER_CALL_ROUNDS_MAX):
            try:
                found = work(context.calling(calls))
            except LockstepError:
                if not calls.waits:
                    raise
            else:
                if not calls.waits:
                    return found
            await self.answer(calls)
        raise too_deep()

    async def answer(self, calls: UserCalls) -> None:
        """Have everything evaluated that is noted."""
        if not self._settings.user_defined_functions_enabled:
            raise InvalidRequest(_DISABLED)
        taken = calls.take()
        for batch in call_batches(taken):
            calls.learn(await self._called(batch))
        for call in taken:
            if isinstance(call, Folded):
                calls.learn({call: await self._folded(call)})

    async def _called(
        self, batch: list[tuple[Code, Arguments]]
    ) -> dict[Call, bytes | FunctionFailure | None]:
        code = batch[0][0]
        outcome = await self._asked(code, question(batch))
        if isinstance(outcome, FunctionFailure) or len(outcome.values) != len(batch):
            broken = outcome if isinstance(outcome, FunctionFailure) else failure(code, "it answered nothing")
            return dict.fromkeys(batch, broken)
        found: dict[Call, bytes | FunctionFailure | None] = dict(zip(batch, outcome.values, strict=True))
        for index, why in outcome.failures:
            found[batch[index]] = failure(code, why)
        return found

    async def _folded(self, fold: Folded) -> bytes | FunctionFailure | None:
        code, state, _ = fold
        for part in fold_questions(fold):
            outcome = await self._asked(code, Fold(code, state, part.rows))
            if isinstance(outcome, FunctionFailure):
                return outcome
            if outcome.failures or len(outcome.values) != 1:
                return failure(code, outcome.failures[0][1] if outcome.failures else "it answered nothing")
            state = outcome.values[0]
        return state

    async def _asked(self, code: Code, asked: Calls | Fold) -> Outcome | FunctionFailure:
        workers, timeout_ms = (
            self._node.context.runtime.workers,
            self._settings.user_defined_functions_fail_timeout_ms,
        )
        if workers is None:
            raise InvalidRequest(_DISABLED)
        try:
            data = await workers.evaluate(code.keyspace, codec.encode(asked), timeout_ms)
            return OUTCOMES.decode(data)
        except TimeoutError:
            arguments = ", ".join(code.argument_types)
            return FunctionFailure(
                f"User defined function {code.keyspace}.{code.name} : ({arguments}) -> {code.returns} ran "
                f"longer than {timeout_ms}ms",
                *(code.keyspace, code.name, code.argument_types),
            )
        except (ConnectionError, *codec.UNREADABLE):
            return failure(code, "the process that evaluated it ended")
        except BlockingIOError as error:
            raise Overloaded(str(error)) from None
        except WorkersRefused as error:
            raise InvalidRequest(
                f"User-defined functions cannot be confined on this node: {error}",
                hint="set functions.unfiltered_workers_allowed if all who may create functions are trusted",
            ) from None


def too_deep() -> InvalidRequest:
    return InvalidRequest(
        "Calls of user-defined functions depend on each other's results more than "
        f"{USER_CALL_ROUNDS_MAX} times"
    )


def called_by(statements: Iterable[Prepared]) -> tuple[tuple[str, str], ...]:
    """The user functions that any of these may call."""
    return tuple(name for prepared in statements for name in prepared.called)


def is_long(text: str, values: Sequence[Value] = ()) -> bool:
    """Whether a statement and its values are too much for the loop."""
    if len(text) > STATEMENT_INLINE_CHARACTERS:
        return True
    return sum([len(value) for value in values if isinstance(value, bytes)]) > VALUES_INLINE_BYTES


def are_long(lists: Lists | None) -> bool:
    """Whether lists that a statement changes are too much for the loop."""
    return lists is not None and sum(map(len, lists.values())) > ROW_CELLS_INLINE


class LongStatements:
    """Of one node."""

    def __init__(self, tasks: Tasks) -> None:
        self._tasks = tasks
        self._turn = asyncio.Lock()
        self._waiting = 0

    async def run(self, work: Callable[[], T]) -> T:
        """What `work` gives, which may touch nothing that changes. Its errors, or Overloaded."""
        if self._waiting >= PLANNED_ASIDE_QUEUED_MAX:
            raise Overloaded("too many long statements wait to be planned on this node")
        self._waiting += 1
        try:
            async with self._turn:
                return await self._tasks.run_blocking(work)
        finally:
            self._waiting -= 1
