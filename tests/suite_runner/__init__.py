"""Tests of the runner of foreign suites."""
