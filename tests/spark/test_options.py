"""Options: what is refused, and how the error helps."""

from __future__ import annotations

import pytest

pytest.importorskip("pyspark")

from lockstep.spark.options import parse_options
from lockstep.values.errors import ConfigurationError
from lockstep.values.ids import Consistency

BASE = {"keyspace": "k", "table": "t"}


def test_names_arrive_in_lower_case() -> None:
    options = parse_options(
        {**BASE, "hosts": "a, b", "splitsperrange": "3", "consistencylevel": "one", "filterpushdown": "TRUE"}
    )
    assert options.hosts == ("a", "b")
    assert options.splits_per_range == 3
    assert options.consistency is Consistency.ONE
    assert options.filter_pushdown


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"nonsense": "1"}, "valid options: hosts, port"),
        ({"port": "0"}, "number from 1"),
        ({"port": "x"}, "number from 1"),
        ({"pageSize": "-5"}, "number from"),
        ({"consistencyLevel": "SERIAL"}, "one of ONE"),
        ({"filterPushdown": "yes"}, "true or false"),
        ({"columns": "a,,b"}, "distinct names"),
        ({"columns": "a,a"}, "distinct names"),
        ({"decimalScale": "39"}, "from 0 to 38"),
        ({"table": ""}, "is empty"),
        ({"writeMode": "both"}, "takes auto, statements or bulk"),
    ],
)
def test_a_wrong_option_is_refused(given: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        parse_options({**BASE, **given})


@pytest.mark.parametrize("missing", ["keyspace", "table"])
def test_keyspace_and_table_are_required(missing: str) -> None:
    with pytest.raises(ConfigurationError, match=f"{missing} is missing"):
        parse_options({name: value for name, value in BASE.items() if name != missing})
