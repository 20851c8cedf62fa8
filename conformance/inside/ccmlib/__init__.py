"""Our stand-in for the cluster tool that the suite expects: it drives the local cluster already running.

Only what tests of an external cluster use: nodes that stop, start, pause and resume.
"""
