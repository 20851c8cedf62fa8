"""The environment of processes that are started for a cluster.

Invariant: settings meant for another node never reach one, and the process imports this very package.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import lockstep


def node_environment(own: Mapping[str, str]) -> dict[str, str]:
    """What a node process inherits: everything but settings meant for another node, and this package."""
    environment = {key: value for key, value in own.items() if not key.startswith("LOCKSTEP_")}
    package_root = str(Path(lockstep.__file__).parents[1])
    others = environment.get("PYTHONPATH")
    environment["PYTHONPATH"] = f"{package_root}{os.pathsep}{others}" if others else package_root
    environment["PYTHONUNBUFFERED"] = "1"
    # Who wants no `__pycache__` beside the sources gets it elsewhere: compiling them anew costs every start
    # of a node three times what importing them does.
    if environment.pop("PYTHONDONTWRITEBYTECODE", "") and "PYTHONPYCACHEPREFIX" not in environment:
        caches = own.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
        environment["PYTHONPYCACHEPREFIX"] = os.path.join(caches, "lockstep", "bytecode")
    return environment
