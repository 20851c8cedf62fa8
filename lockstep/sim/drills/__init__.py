"""Runs without nodes: placements against an obvious model, quorums of every version, announcements."""
