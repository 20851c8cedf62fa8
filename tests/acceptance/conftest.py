"""What acceptance tests share: which clusters they made."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from lockstep.local.clusters import LocalCluster
from tests.acceptance.parts import MADE


@pytest.fixture(scope="session", autouse=True)
def clusters_made() -> Iterator[None]:
    """Keep where each cluster lies, so that commands are given its nodes' tokens."""
    create = LocalCluster.create

    def noted(*arguments: Any, **settings: Any) -> LocalCluster:
        made = create(*arguments, **settings)
        MADE.append(made.paths)
        return made

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LocalCluster, "create", noted)
        yield
