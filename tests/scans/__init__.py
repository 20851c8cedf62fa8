"""Tests of the scans room."""
