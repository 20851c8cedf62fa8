"""Gives every run of pytest the fixtures of the test kit.

Pytest rewrites the assertions of the package that a plugin lies in; the database is not to be among them.
"""

pytest_plugins = ("lockstep.testing.plugin",)
