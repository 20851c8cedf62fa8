"""The registry of admin operations: routing and the OpenAPI document come from the same table.

Invariant: what is not in the table is neither served nor documented. Plain answers become JSON and parameters
are read in one way; a wrong or missing one is a ConfigurationError that names it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

import msgspec

import lockstep
from lockstep.server.admin.admin_access import Access
from lockstep.server.admin.http import HttpRequest, HttpResponse, json_response
from lockstep.values.errors import ConfigurationError

T = TypeVar("T")


class Parameter(msgspec.Struct, frozen=True):
    """A query parameter; `type` as JSON Schema names it."""

    name: str
    description: str
    type: str = "string"
    required: bool = False


#: Told the request and the values of the path's placeholders.
Perform = Callable[[HttpRequest, dict[str, str]], Awaitable[HttpResponse]]


class Operation(msgspec.Struct, frozen=True):
    """`path` may hold placeholders in braces. `body` is the JSON Schema of the request's body, or None.
    `holds_secrets`: the answer has what only superusers may read. `breaks_glass`: only the node's own token
    lets somebody do it."""

    method: str
    path: str
    summary: str
    perform: Perform
    answer: str
    parameters: tuple[Parameter, ...] = ()
    body: dict[str, Any] | None = None
    content_type: str = "application/json"
    holds_secrets: bool = False
    breaks_glass: bool = False

    @property
    def access(self) -> Access:
        """What it asks of who wants it."""
        if self.holds_secrets:
            return Access.SECRET
        if self.breaks_glass:
            return Access.BREAK_GLASS
        if self.method != "GET":
            return Access.CHANGE
        return Access.PROBE if self.path == "/metrics" or self.path.startswith("/health/") else Access.READ


def read_body(body: Any, kind: type[T], problem: str) -> T:
    """What the body of a request says; ConfigurationError with the problem where it is not understood."""
    try:
        return msgspec.convert(body, kind)
    except msgspec.ValidationError as error:
        raise ConfigurationError(f"{problem}: {error}") from error


class Registry:
    def __init__(self, operations: Sequence[Operation]) -> None:
        self.operations = tuple(operations)

    def find(self, method: str, path: str) -> tuple[Operation, dict[str, str]] | None:
        """The operation and its placeholders' values; None when no path fits, ConfigurationError for a
        path that does not know the method."""
        wanted = "GET" if method == "HEAD" else method
        known: list[str] = []
        for operation in self.operations:
            values = _matched(operation.path, path)
            if values is None:
                continue
            if operation.method == wanted:
                return operation, values
            known.append(operation.method)
        if known:
            raise ConfigurationError(f"{path} knows {', '.join(sorted(known))}, not {method}")
        return None

    def openapi(self) -> dict[str, Any]:
        """The OpenAPI 3.1 document of the table."""
        paths: dict[str, dict[str, Any]] = {}
        for operation in self.operations:
            paths.setdefault(operation.path, {})[operation.method.lower()] = _described(operation)
        return {
            "openapi": "3.1.0",
            "info": {"title": "Lockstep admin API", "version": lockstep.__version__},
            "paths": paths,
            "components": {"schemas": {"Error": _ERROR_SCHEMA}, "securitySchemes": _SECURITY_SCHEMES},
        }


_ERROR_SCHEMA = {
    "type": "object",
    "properties": {name: {"type": "string"} for name in ("code", "message", "hint")},
    "required": ["code", "message"],
}

_SECURITY_SCHEMES = {
    "token": {
        "type": "http",
        "scheme": "bearer",
        "description": "The content of `admin.token` in the node's data directory, or of admin.token_file",
    },
    "role": {
        "type": "http",
        "scheme": "basic",
        "description": "A role that may log in, where auth.authenticator is password",
    },
}
#: What each operation says of its needs, beside the schemes.
_NEEDED = {
    Access.PROBE: "No credential while admin.open_probes is true",
    Access.READ: "No credential where admin.open_reads says so; a role needs SELECT ON ALL MBEANS",
    Access.CHANGE: "A role needs EXECUTE ON ALL MBEANS",
    Access.SECRET: "A role has to be a superuser",
    Access.BREAK_GLASS: "Only the node's own token",
}


def _matched(pattern: str, path: str) -> dict[str, str] | None:
    wanted, given = pattern.split("/"), path.rstrip("/").split("/")
    if len(wanted) != len(given):
        return None
    values: dict[str, str] = {}
    for one, other in zip(wanted, given, strict=True):
        if one.startswith("{"):
            values[one[1:-1]] = other
        elif one != other:
            return None
    return values


def _described(operation: Operation) -> dict[str, Any]:
    placeholders = [part[1:-1] for part in operation.path.split("/") if part.startswith("{")]
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in placeholders
    ]
    parameters += [
        {
            "name": parameter.name,
            "in": "query",
            "required": parameter.required,
            "description": parameter.description,
            "schema": {"type": parameter.type},
        }
        for parameter in operation.parameters
    ]
    error = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    schemes: list[dict[str, list[str]]] = [{"token": []}, {"role": []}]
    if operation.access in (Access.PROBE, Access.READ):
        schemes.insert(0, {})
    described: dict[str, Any] = {
        "summary": operation.summary,
        "description": _NEEDED[operation.access],
        "security": schemes,
        "parameters": parameters,
        "responses": {
            "200": {
                "description": operation.answer,
                "content": {operation.content_type: {"schema": {"type": "object"}}},
            },
            "default": {"description": "What went wrong, and what to do", "content": error},
        },
    }
    if operation.body is not None:
        described["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": operation.body}},
        }
    return described


Answer = Callable[[HttpRequest, dict[str, str]], Any]
#: Numbers are given by the metadata, one after the other, and fit into 63 bits.
_NUMBER_DIGITS_MAX = 18


def get(path: str, summary: str, perform: Any, *parameters: Parameter) -> Operation:
    return Operation("GET", path, summary, perform, summary, parameters)


def now(answer: Answer) -> Callable[[HttpRequest, dict[str, str]], Awaitable[HttpResponse]]:
    async def perform(request: HttpRequest, values: dict[str, str]) -> HttpResponse:
        return json_response(answer(request, values))

    return perform


def later(answer: Answer) -> Callable[[HttpRequest, dict[str, str]], Awaitable[HttpResponse]]:
    async def perform(request: HttpRequest, values: dict[str, str]) -> HttpResponse:
        return json_response(await answer(request, values))

    return perform


def required(request: HttpRequest, name: str) -> str:
    value = request.query.get(name)
    if not value:
        raise ConfigurationError(f"{request.path} needs the parameter {name}")
    return value


def integer(request: HttpRequest, name: str) -> int:
    text = required(request, name)
    try:
        return int(text)
    except ValueError:
        raise ConfigurationError(f"{name} must be an integer, not {text}") from None


def number_in(text: str) -> int | None:
    """The number of a request or repair that a path names; None for a text that is no such number."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= _NUMBER_DIGITS_MAX else None
