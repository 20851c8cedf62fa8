"""A pytest plugin that writes each test's outcome at once, so that a killed run loses one test only.

Lines of JSON in the file that CONFORMANCE_RECORD names: {"event": "collected" | "started" | "finished", ...}.
"""

import json
import os

import pytest

_TEXT_MAX = 6000


class Recorder:
    def __init__(self, path):
        self._file = open(path, "a", encoding="utf-8")  # noqa: SIM115 - open for the whole run

    def _write(self, **fields):
        self._file.write(json.dumps(fields) + "\n")
        self._file.flush()

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items):
        # After what deselects tests.
        for item in items:
            self._write(event="collected", test=item.nodeid)

    def pytest_collectreport(self, report):
        if report.failed:
            self._write(event="uncollected", test=report.nodeid, text=str(report.longrepr)[-_TEXT_MAX:])

    def pytest_runtest_logstart(self, nodeid):
        self._write(event="started", test=nodeid)

    @pytest.hookimpl
    def pytest_runtest_logreport(self, report):
        if report.when == "call" or report.outcome != "passed":
            self._write(
                event="finished",
                test=report.nodeid,
                phase=report.when,
                outcome=_outcome(report),
                duration_s=round(report.duration, 3),
                text=_text(report),
            )


def _outcome(report):
    if hasattr(report, "wasxfail"):
        return "skipped" if report.outcome == "skipped" else "passed"
    return report.outcome


def _text(report):
    if report.outcome == "skipped" and isinstance(report.longrepr, tuple):
        return str(report.longrepr[2])
    return "" if report.outcome == "passed" else str(report.longrepr)[-_TEXT_MAX:]


def pytest_configure(config):
    path = os.environ.get("CONFORMANCE_RECORD")
    if path:
        config.pluginmanager.register(Recorder(path))
