"""The process that ends a cluster when the process that made it has ended: `watchdog DIRECTORY PARENT
keep|delete`.

Owns: the end of what a crashed, killed or interrupted test left behind. Invariant: it acts once, when its
standard input ends or its parent is another process; it kills only processes whose identity the directory
records. It holds the lock on the cluster's addresses, so these are taken until the last node is gone.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Final

from lockstep.local import processes
from lockstep.local.processes import State, node_environment

#: A forked child of the tests may hold the pipe open; the parent's id tells then.
_LOOK_S: Final = 1.0
_END_S: Final = 10.0


def guard(directory: Path, keep: bool, descriptor: int) -> subprocess.Popen[bytes]:
    """Start the watchdog of a directory; closing its standard input, or dying, ends what is there.

    It inherits `descriptor`, the lock on the addresses, and a session of its own keeps Ctrl-C from it.
    """
    own = [sys.executable, "-P", "-m", "lockstep.testing.watchdog"]
    return subprocess.Popen(
        [*own, str(directory), str(os.getpid()), "keep" if keep else "delete"],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        env=node_environment(os.environ),
        pass_fds=(descriptor,),
        start_new_session=True,
    )


def main() -> None:
    directory, parent, keep = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == "keep"
    wait_for_the_end(parent)
    if directory.exists():
        end(directory)
        if not keep:
            shutil.rmtree(directory, ignore_errors=True)


def wait_for_the_end(parent: int) -> None:
    """Until nobody holds the other end of standard input, or `parent` is gone."""
    while os.getppid() == parent:
        readable, _, _ = select.select([sys.stdin.fileno()], [], [], _LOOK_S)
        if readable:
            return


def end(directory: Path) -> None:
    """Kill every node that a directory below records."""
    identities = [processes.recorded(path) for path in sorted(directory.glob("**/pid"))]
    for identity in identities:
        processes.send(identity, signal.SIGKILL)
    processes.wait_until(lambda: all(processes.look(one) is State.STOPPED for one in identities), _END_S)


if __name__ == "__main__":
    main()
