"""Clusters that several tests share: they only add keyspaces of their own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.server.parts import Nodes, nodes


@pytest.fixture(scope="package")
def single(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    with nodes(tmp_path_factory.mktemp("single"), 1) as cluster:
        yield cluster
        assert not cluster.escaped


@pytest.fixture(scope="package")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    with nodes(tmp_path_factory.mktemp("three"), 3) as cluster:
        yield cluster
        assert not cluster.escaped
