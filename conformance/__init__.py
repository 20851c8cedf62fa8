"""Runs foreign test suites, fetched by the reader, against a local cluster and says what they found.

Nothing of a suite is kept here: `make conformance SUITE=path` copies what it needs below `build/conformance`.
"""
