"""Empty tables for every test, in a keyspace of its own."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from orders import Orders, create_tables


@pytest.fixture
def orders(lockstep_session):
    create_tables(lockstep_session.execute)
    return Orders(lockstep_session)
