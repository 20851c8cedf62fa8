"""Work of topology operations, repairs, backups and upkeep, where its effect is.

Owns: the driver of the topology coordinator, a node's own part of each stage, repairs, backups and restores
with those who drive them, purging, building views, scrubbing, what this node lacks, and its conditions.
Invariant: work has effects only under the guard of its session. Neighbours: storage, streaming, node.log.
"""
