"""The `lockstep` command: one module a command group, each imported only when its command is used.

Owns: parsing, rendering, exit codes. Decides nothing: it calls the admin API of a running node or the
library, and shows the answer. Data goes to stdout; progress, warnings and errors go to stderr.
Neighbours: `local` for clusters on this machine, `sim` for simulations; nothing imports this room.
"""
