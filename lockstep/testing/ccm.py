"""A directory that ccm takes for an install of Cassandra, and that starts Lockstep nodes: `python -m
lockstep.testing.ccm DIRECTORY`.

Owns: what lies in that directory. Invariant: the files of one name are the same whenever it is made; nothing
in it knows of a cluster, as ccm copies it to each node and rewrites the copy.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

from lockstep.values.ids import CASSANDRA_RELEASE

#: ccm asks this for the version of Java, and refuses to start without one.
_JAVA: Final = """#!/bin/sh
echo 'openjdk version "17.0.0"' >&2
"""
_PROGRAM: Final = """#!/bin/sh
exec "{python}" -P -m {module} "$@"
"""
#: The one that is installed beside this package (`pip install cqlsh`).
_CQLSH: Final = """#!/bin/sh
exec "{program}" "$@"
"""
#: ccm replaces these lines, or looks for them.
_INCLUDE: Final = """CASSANDRA_HOME=
CASSANDRA_CONF=
"""
_ENVIRONMENT: Final = """JMX_PORT="7199"
JVM_OPTS="$JVM_OPTS -agentlib:jdwp=transport=dt_socket,server=y,suspend=n,address=1414"
"""
_LOGBACK: Final = """<configuration>
  <logger name="org.apache.cassandra" level="INFO"/>
  <root level="INFO"/>
</configuration>
"""
_SETTINGS: Final = """cluster_name: test
num_tokens: 16
listen_address: 127.0.0.1
storage_port: 7000
rpc_address: 127.0.0.1
native_transport_port: 9042
seed_provider:
  - class_name: org.apache.cassandra.locator.SimpleSeedProvider
    parameters:
      - seeds: 127.0.0.1
data_file_directories: [data]
commitlog_directory: commitlogs
saved_caches_directory: saved_caches
hints_directory: hints
cdc_raw_directory: cdc_raw
endpoint_snitch: SimpleSnitch
"""
_PROPERTIES: Final = "dc=dc1\nrack=rack1\n"
_TOPOLOGY: Final = "default=dc1:rack1\n"


def install(directory: Path) -> Path:
    """Write the directory, and return it. For ccm, `directory/java` must be on the PATH where there is no
    Java."""
    files = {
        "0.version.txt": f"{CASSANDRA_RELEASE}\n",
        "bin/cassandra": _PROGRAM.format(python=sys.executable, module="lockstep.testing.ccm_node"),
        "bin/nodetool": _PROGRAM.format(python=sys.executable, module="lockstep.testing.ccm_nodetool"),
        "bin/cqlsh": _CQLSH.format(program=Path(sys.executable).with_name("cqlsh")),
        "bin/cassandra.in.sh": _INCLUDE,
        "java/java": _JAVA,
        "conf/cassandra.yaml": _SETTINGS,
        "conf/cassandra-env.sh": _ENVIRONMENT,
        "conf/logback.xml": _LOGBACK,
        "conf/logback-tools.xml": _LOGBACK,
        "conf/cassandra-rackdc.properties": _PROPERTIES,
        "conf/cassandra-topology.properties": _TOPOLOGY,
    }
    for name, text in files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        if text.startswith("#!"):
            path.chmod(0o755)
    return directory


if __name__ == "__main__":
    print(install(Path(sys.argv[1]).absolute()))
