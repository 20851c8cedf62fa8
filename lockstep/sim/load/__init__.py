"""Clients and operators of simulated clusters: what they ask for, and the record of what they were told."""
