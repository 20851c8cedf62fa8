"""Replication options as written to a Replication value.

Invariant: the result depends on the options, the data centres given and the earlier Replication only; it
never names a data centre twice, and factors are positive (or one zero factor for SimpleStrategy). A list of
racks stands for as many replicas; whether there are such racks is not said here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from lockstep.schema.model import Replication
from lockstep.schema.tablet_options import KeyspaceTablets
from lockstep.tracking.witnesses import Factor, factor_of, judge
from lockstep.values.errors import ConfigurationInvalid, Rejected

CONFIGURATION = 0x2300
_PACKAGE = "org.apache.cassandra.locator."
SIMPLE = "SimpleStrategy"
TOPOLOGY = "NetworkTopologyStrategy"
_FACTOR = "replication_factor"
#: Of a keyspace that names none.
_FACTOR_DEFAULT = 1
Options = tuple[tuple[str, str], ...]
#: Digits of a replication factor; there are never more nodes than 65,535.
_FACTOR_DIGITS_MAX = 5
#: Racks of one list: each has a replica of every tablet, and a write waits for a majority of them.
_RACKS_MAX = 64
_NAME_IN_LIST = re.compile(r"'((?:[^']|'')*)'")
_LIST = re.compile(r"\[\s*(?:'(?:[^']|'')*'\s*(?:,\s*'(?:[^']|'')*'\s*)*)?\]")


def refused(message: str) -> Rejected:
    return Rejected(message, cql_code=CONFIGURATION)


def parse_replication(
    keyspace: str,
    options: Sequence[tuple[str, str]],
    data_centers: Sequence[str],
    earlier: Replication | None = None,
) -> Replication:
    """Rejected (configuration) when the options name no usable strategy or factor.

    `replication_factor` of NetworkTopologyStrategy stands for every one of `data_centers` that is not
    named itself. Without known data centres, named ones are accepted as they are.
    """
    given = dict(options)
    strategy = given.pop("class", "")
    if not strategy:
        raise refused("Missing replication strategy class")
    name = strategy.removeprefix(_PACKAGE)
    if name == SIMPLE:
        return _simple(keyspace, given)
    if name == TOPOLOGY:
        return _topology(keyspace, given, data_centers, earlier)
    full = strategy if "." in strategy else _PACKAGE + strategy
    raise refused(f"Unable to find replication strategy class '{full}'")


def with_factor(options: Options, earlier: Replication | None) -> Options:
    """Options with the factor that is meant when they name none: of SimpleStrategy the earlier one, else one
    replica (in each data centre)."""
    given = dict(options)
    strategy = given.pop("class", "").removeprefix(_PACKAGE)
    if _FACTOR in given or strategy not in (SIMPLE, TOPOLOGY) or (given and strategy == TOPOLOGY):
        return options
    kept = earlier.total if earlier is not None and earlier.strategy == SIMPLE else _FACTOR_DEFAULT
    return (*options, (_FACTOR, str(kept)))


def _simple(keyspace: str, given: dict[str, str]) -> Replication:
    if _FACTOR not in given:
        raise refused("SimpleStrategy requires a replication_factor strategy option.")
    factor = _factor(given.pop(_FACTOR))
    if given:
        raise _unrecognised(next(iter(given)), SIMPLE, keyspace)
    return Replication(SIMPLE, (("", factor),))


def _topology(
    keyspace: str, given: dict[str, str], data_centers: Sequence[str], earlier: Replication | None
) -> Replication:
    everywhere = given.pop(_FACTOR, None)
    factors: dict[str, int] = {}
    witnesses: dict[str, int] = {}
    racks: dict[str, tuple[str, ...]] = {}
    if everywhere is not None:
        meant = _shared(everywhere)
        factors = dict.fromkeys(sorted(data_centers), meant.replicas)
        witnesses = dict.fromkeys(factors, meant.witnesses)
        if earlier is not None and earlier.strategy == TOPOLOGY:
            factors.update(earlier.factors)
            witnesses.update({dc: earlier.witnesses.get(dc, 0) for dc, _ in earlier.factors})
            racks.update(earlier.lists)
    for data_center, text in given.items():
        if data_centers and data_center not in data_centers:
            raise _unrecognised(data_center, TOPOLOGY, keyspace)
        racks.pop(data_center, None)
        witnesses.pop(data_center, None)
        if is_list(text):
            racks[data_center] = _racks(data_center, text)
            factors[data_center] = len(racks[data_center])
        else:
            meant = _shared(text)
            factors[data_center], witnesses[data_center] = meant.replicas, meant.witnesses
    kept = {name: factor for name, factor in factors.items() if factor > 0}
    if not kept:
        raise refused("Configuration for at least one datacenter must be present")
    _judge({name: Factor(factor, witnesses.get(name, 0)) for name, factor in kept.items()})
    assert {dc for dc, some in witnesses.items() if some} <= kept.keys(), "witnesses are some of the replicas"
    counts = sorted([*kept.items(), *((name, -some) for name, some in witnesses.items() if some > 0)])
    named = tuple(sorted((name, listed) for name, listed in racks.items() if listed))
    return Replication(TOPOLOGY, tuple(counts), named)


def _shared(text: str) -> Factor:
    """A factor that may say how many of the replicas are witnesses, as `3/1`."""
    if "/" not in text:
        return Factor(_factor(text))
    try:
        return factor_of(text)
    except ConfigurationInvalid as error:
        raise refused(str(error)) from None


def _judge(factors: dict[str, Factor]) -> None:
    assert factors and all(one.replicas > 0 for one in factors.values()), (
        "data centres without replicas are left out"
    )
    if any(factor.witnesses for factor in factors.values()):
        try:
            judge(factors)
        except ConfigurationInvalid as error:
            raise refused(str(error)) from None


def is_list(text: str) -> bool:
    """Whether an option is a list of racks, as `list_text` writes it, instead of a factor."""
    return text.startswith("[")


def list_text(racks: Iterable[str]) -> str:
    """A list of racks as it is written in statements; options have it as one text."""
    return "[" + ", ".join("'" + rack.replace("'", "''") + "'" for rack in racks) + "]"


def _racks(data_center: str, text: str) -> tuple[str, ...]:
    if not _LIST.fullmatch(text):
        raise refused(f"The racks of {data_center} are a list of names; found {text}")
    names = [one.replace("''", "'") for one in _NAME_IN_LIST.findall(text)]
    if any(not name for name in names) or len(names) > _RACKS_MAX:
        raise refused(f"The racks of {data_center} are at most {_RACKS_MAX} names, none of them empty")
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise refused(f"Rack {twice} of {data_center} is named twice")
    return tuple(sorted(names))


def check_lists(replication: Replication, tablets: KeyspaceTablets | None, name: str) -> None:
    """Raises Rejected for lists of racks where the keyspace lies on the ring."""
    assert not replication.racks or replication.strategy == TOPOLOGY, "racks are of data centres"
    if replication.racks and tablets is None:
        raise refused(
            f"only tablets are replicated by lists of racks, and keyspace {name} lies on the ring: say how "
            f"many replicas {replication.racks[0][0]} has, or have tablets = {{'enabled': true}}"
        )


def _factor(text: str) -> int:
    body = text.removeprefix("-")
    if not (body.isascii() and body.isdigit()) or len(body) > _FACTOR_DIGITS_MAX:
        raise refused(f"Replication factor must be numeric; found {text}")
    if text.startswith("-") and int(body) > 0:
        raise refused(f"Replication factor must be non-negative; found {text}")
    return int(body)


def _unrecognised(option: str, strategy: str, keyspace: str) -> Rejected:
    return refused(f"Unrecognized strategy option {{{option}}} passed to {strategy} for keyspace {keyspace}")


def replication_map(replication: Replication) -> dict[str, str]:
    """The map that people read: `class` (fully qualified) and the factors, or lists of racks."""
    found, lists = {"class": _PACKAGE + replication.strategy}, replication.lists
    for name, factor in replication.factor_texts:
        found[name or _FACTOR] = list_text(lists[name]) if name in lists else factor
    return found
