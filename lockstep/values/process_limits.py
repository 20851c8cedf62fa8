"""The limits of processes that a node starts: workers run user functions, helpers its long work.

Invariant: each number is named once, with its reason; nothing here depends on anything.
"""

from __future__ import annotations

from typing import Final

#: One message to or from a worker: a thousand calls with values of 64 KiB.
WORKER_MESSAGE_BYTES_MAX: Final = 64 * 1024 * 1024
#: Worker processes of one node: user functions may take as much of the machine as two cores.
WORKERS_MAX: Final = 2
#: Messages that wait for a worker; with two workers and the default time the last may wait for minutes.
WORKER_QUEUE_MAX: Final = 256
#: What a worker may allocate, its interpreter's 40 MiB included.
WORKER_MEMORY_BYTES: Final = 256 * 1024 * 1024
#: Seconds of work after which a worker is replaced, and of processor time after which the kernel ends it.
WORKER_BUSY_S_MAX: Final = 300
WORKER_CPU_S_MAX: Final = 600
#: How long a new worker may take until it is confined and ready.
WORKER_START_S_MAX: Final = 20
#: Processes of one node that do its long work: two build files at once, one writing while the other reads.
HELPERS_MAX: Final = 2
#: For how long helpers without work are kept: a new one takes a tenth of a second to begin.
HELPER_IDLE_MS: Final = 10_000
#: How much later than the node's own work helpers get the processor: beside a process that is always busy a
#: tenth of it.
HELPER_NICENESS: Final = 10
