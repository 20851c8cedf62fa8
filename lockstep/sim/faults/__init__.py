"""Faults: what each does to a cluster, the counters that prove its effect, and the nemesis that draws."""
