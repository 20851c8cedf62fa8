"""Write times out of the ids of rows of a log."""

from __future__ import annotations

import uuid
from random import Random

import pytest

pytest.importorskip("pyspark")

import pyarrow as pa

from lockstep.spark.changes.columns import time_bound, times_us
from lockstep.values.errors import ProtocolViolation

_UUID_BEGINS = 0x01B21DD213814000


def test_times_are_those_of_each_id_alone() -> None:
    dice = Random(1)
    ids = [uuid.UUID(int=dice.getrandbits(128) & ~(0xF << 76) | 1 << 76) for _ in range(2000)]
    found = times_us(pa.array([str(one) for one in ids])).tolist()
    assert found == [(one.time - _UUID_BEGINS) // 10 for one in ids]
    at_us = 1_700_000_000_000_001
    assert times_us(pa.array([str(uuid.UUID(bytes=time_bound(at_us)))])).tolist() == [at_us]
    assert not len(times_us(pa.array([], pa.string())))


def test_what_is_no_id_has_no_time() -> None:
    for wrong in (["short"], [None, str(uuid.uuid1())]):
        with pytest.raises(ProtocolViolation):
            times_us(pa.array(wrong, pa.string()))
