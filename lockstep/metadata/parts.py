"""The parts that the rooms up to this one keep in the metadata."""

from __future__ import annotations

from typing import Any, Final

from lockstep.metadata.access.roles import ACCESS
from lockstep.metadata.cdc import GENERATIONS
from lockstep.metadata.degraded import DEGRADED
from lockstep.metadata.directory import DIRECTORY, EXCLUDED, FEATURE_STATE, IDENTITY
from lockstep.metadata.extensions import EXTENSIONS
from lockstep.metadata.groups.service import SERVICE
from lockstep.metadata.log.recent_ids import RECENT_IDS
from lockstep.metadata.operations import OPERATIONS
from lockstep.metadata.part import Part, Registered
from lockstep.metadata.repairs import REPAIRS
from lockstep.metadata.requests import REQUESTS
from lockstep.metadata.schema_part import PLACEMENTS, SCHEMA
from lockstep.metadata.tablets import TABLETS
from lockstep.metadata.transitions import TRANSITIONS

PARTS: Final[tuple[Part[Any], ...]] = (
    IDENTITY,
    DIRECTORY,
    SCHEMA,
    PLACEMENTS,
    OPERATIONS,
    SERVICE,
    EXTENSIONS,
    REQUESTS,
    EXCLUDED,
    DEGRADED,
    FEATURE_STATE,
    GENERATIONS,
    REPAIRS,
    ACCESS,
    RECENT_IDS,
    TRANSITIONS,
    TABLETS,
)
#: What there is when no room above adds a part.
REGISTERED: Final = Registered(PARTS)
