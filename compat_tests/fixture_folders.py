"""Folders that fixtures of a test file made are removed behind it, once all of its tests passed.

pytest removes those of single tests, all others at the end of a run in which nothing failed. A
fleet has 900 MB, in memory where folders are: a run would need 10 GB.
"""

from __future__ import annotations

import shutil
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

_of_file: set[Path] = set()
_of_session: set[Path] = set()
_failed: set[Path] = set()
"""Files of which a test failed, also one that is repeated."""


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(
    fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest
) -> Generator[None, object, object]:
    """Note the folders that a fixture makes, without those of fixtures that it asks for."""
    made = {"module": _of_file, "session": _of_session}.get(fixturedef.scope)
    if made is None or fixturedef.argname == "tmp_path_factory":
        return (yield)
    top = request.getfixturevalue("tmp_path_factory").getbasetemp()
    before = {*top.iterdir()}
    try:
        return (yield)
    finally:
        made |= {*top.iterdir()} - before - _of_file - _of_session


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Note failures."""
    report = yield
    if report.failed:
        _failed.add(item.path)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(
    item: pytest.Item, nextitem: pytest.Item | None
) -> Generator[None, object, object]:
    """Remove the folders with the last test of a file."""
    result = yield
    if nextitem is None or nextitem.path != item.path:
        if item.path not in _failed:
            for folder in _of_file:
                shutil.rmtree(folder, ignore_errors=True)
        _of_file.clear()
    return result
