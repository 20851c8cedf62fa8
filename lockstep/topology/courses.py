"""The kinds of transitions that move by themselves, by name; what moves in operations has the stages of its
operation's kind.

Invariant: whoever drives transitions looks their stages up here, and knows no kind by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from lockstep.topology.stages import Course
from lockstep.topology.tablets.stages import INTRANODE, MIGRATION, REBUILD

COURSES: Mapping[str, Course] = MappingProxyType(
    {course.name: course for course in (MIGRATION, INTRANODE, REBUILD)}
)
