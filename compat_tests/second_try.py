"""A failed test is repeated with everything new (`--reruns`): its service, its queues, its folders.

The plugin that repeats tests keeps what fixtures of the file and of the session made. The second
try would find the messages of the first one, or its keys, and fail whatever the first one failed
for.
"""

from __future__ import annotations

from collections.abc import Generator

import pytest

_FAILED = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Note whether the test, or what it needs, failed."""
    report = yield
    failed_before = call.when != "setup" and item.stash[_FAILED]
    item.stash[_FAILED] = failed_before or report.failed
    return report


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    """End all that fixtures made for a failed test, also those that later tests would share."""
    if item.stash[_FAILED] and item.config.getoption("reruns", None):
        item.session._setupstate.teardown_exact(None)
