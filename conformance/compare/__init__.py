"""Statements run on Lockstep and on a real Cassandra side by side."""
