"""Starts the Python workers of a Spark session, as PySpark's own daemon does, which Spark runs by its name.

Invariant: a worker whose reader of rows went away has nothing to tell: a query with LIMIT closes its task's
connection once it has enough, and the worker ends without a traceback on the terminal. All other errors of a
worker are told as they are by PySpark.
"""

from __future__ import annotations

import socket
from typing import Final

from pyspark import daemon

#: The module's name in the setting that makes Spark run it.
SETTING: Final = "spark.python.daemon.module"
#: Tells the loop around workers to let this one end.
_ENDED: Final = 1
_worker = daemon.worker


def worker(sock: socket.socket, authenticated: bool) -> int:
    """Serve the tasks of one connection; its exit code."""
    try:
        return int(_worker(sock, authenticated))
    except BrokenPipeError:
        return _ENDED


if __name__ == "__main__":
    daemon.worker = worker
    daemon.manager()
