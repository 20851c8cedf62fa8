"""Topology operations as short series of safe steps, and the pure decisions that drive them.

Owns: the stage tables, the transformations that prepare, advance and cancel an operation, barriers,
stream plans, the coordinator's step and its explanations. Invariant: adjacent stages always have
meeting read and write quorums, and no step is proposed before the barrier of the one before. Neighbours:
imports values, schema, placement and metadata; node carries out what a decision asks.
"""
