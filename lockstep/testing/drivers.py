"""Connecting with a driver of Python, if one is installed.

Owns: how the kit calls `cassandra.cluster`, the one module name that cassandra-driver and scylla-driver
share. Invariant: nothing here is imported before a test connects, and the kit runs without either.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lockstep.values.errors import ConfigurationError

_PROTOCOL_VERSION = 5


def connect(
    contact_points: Sequence[str],
    port: int,
    keyspace: str | None = None,
    *,
    user: str = "",
    password: str = "",
    **settings: Any,
) -> Any:
    """A connected session. ConfigurationError when there is no driver.

    Unless `settings` say otherwise: requests go to all nodes in turn at QUORUM, and lost nodes are tried
    again within a second, as tests bring them back and do not want to wait.
    """
    try:
        from cassandra import ConsistencyLevel, ProtocolVersion
        from cassandra.auth import PlainTextAuthProvider
        from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile
        from cassandra.policies import ConstantReconnectionPolicy, RoundRobinPolicy, TokenAwarePolicy
    except ImportError as error:
        raise ConfigurationError(
            "no driver is installed", hint="pip install cassandra-driver, or use cluster.execute"
        ) from error
    if "execution_profiles" not in settings and "load_balancing_policy" not in settings:
        profile = ExecutionProfile(
            load_balancing_policy=TokenAwarePolicy(RoundRobinPolicy()),
            consistency_level=ConsistencyLevel.QUORUM,
        )
        settings["execution_profiles"] = {EXEC_PROFILE_DEFAULT: profile}
    # The newest that nodes speak: a driver finds out by being refused, and logs each time.
    spoken = [version for version in ProtocolVersion.SUPPORTED_VERSIONS if version <= _PROTOCOL_VERSION]
    settings.setdefault("protocol_version", max(spoken))
    settings.setdefault("reconnection_policy", ConstantReconnectionPolicy(0.5, max_attempts=None))
    if user and "auth_provider" not in settings:
        settings["auth_provider"] = PlainTextAuthProvider(user, password)
    cluster = Cluster(list(contact_points), port=port, **settings)
    try:
        return cluster.connect(keyspace)
    except BaseException:
        cluster.shutdown()
        raise
