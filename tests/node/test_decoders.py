"""Decoders are made with the first bytes, so a kind that cannot be read would be found out late."""

from __future__ import annotations

from lockstep.internode import verbs
from lockstep.node import kinds
from tests.node.support import Town


def test_all_that_nodes_tell_each_other_can_be_decoded() -> None:
    with Town() as town:
        town.found()
        services = town.node(1).context.internode._services
        assert len(services) > 60
        for verb, service in services.items():
            for decoder in (service.request_decoder, service.reply_decoder, service.shared_decoder):
                assert decoder is None or callable(decoder.made()), verbs.NAMES[verb]


def test_the_bodies_of_all_kinds_of_entries_can_be_decoded() -> None:
    registry = kinds.every_kind()
    assert len(registry._decoders) > 50
    for decoder in registry._decoders.values():
        assert callable(decoder.made())
