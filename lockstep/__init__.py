"""Lockstep: a distributed wide-column database whose nodes always agree on who owns what."""

__version__ = "0.1.0"
