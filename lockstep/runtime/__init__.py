"""The only doors to the outside world: time, randomness, network, disk, tasks, reach points.

Owns: the ports (`ports.py`) and their production family (`real/`). The simulated family lives in `sim/`.
Invariant: no other room reads real time, draws real randomness or touches sockets, files and threads.
Plain asyncio primitives (streams, locks, events, timeouts) are used freely everywhere below: both
families run them on an event loop, the simulator on one with virtual time.
"""
