"""Which kinds of entries a node knows when a test makes it pretend to be of another version."""

from __future__ import annotations

import pytest

from lockstep.metadata.groups.membership import ServiceWish, SetService
from lockstep.metadata.log.registry import LOG_VERSION
from lockstep.node.configuration import TestingSection
from lockstep.node.kinds import every_kind, kinds_of
from lockstep.values.errors import CannotApply, ConfigurationError

ENTRY = every_kind().encode(SetService(ServiceWish.FREEZE))


def test_a_node_knows_every_kind_unless_a_test_hides_some() -> None:
    usual = kinds_of(TestingSection())
    assert usual.version == LOG_VERSION
    assert usual.decode(*ENTRY) == SetService(ServiceWish.FREEZE)
    with pytest.raises(CannotApply, match="entry kind 14 is not known"):
        kinds_of(TestingSection(hide_kinds=("set_service",))).decode(*ENTRY)


def test_a_kind_that_does_not_exist_cannot_be_hidden() -> None:
    with pytest.raises(ConfigurationError, match="there is no kind set_servant"):
        kinds_of(TestingSection(hide_kinds=("set_servant",)))


@pytest.mark.parametrize("version", [0, 9])
def test_a_node_says_the_version_that_a_test_gives_it(version: int) -> None:
    assert kinds_of(TestingSection(log_version=version)).version == version
