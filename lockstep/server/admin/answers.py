"""Making operations of the admin API: plain answers become JSON, and parameters are read in one way.

Invariant: a wrong or missing parameter is a ConfigurationError that names it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from lockstep.server.admin.http import HttpRequest, HttpResponse, json_response
from lockstep.server.admin.operations import Operation, Parameter
from lockstep.values.errors import ConfigurationError

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
