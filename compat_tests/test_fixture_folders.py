"""Folders of a test file are removed once it has passed, and no others."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PLUGIN = "compat_tests.fixture_folders"
FIXTURES = """
import pytest

@pytest.fixture(scope="session")
def shared(tmp_path_factory):
    return tmp_path_factory.mktemp("shared")

@pytest.fixture(scope="module")
def own(tmp_path_factory, request):
    request.getfixturevalue("shared")
    return tmp_path_factory.mktemp(request.path.stem)
"""
PASSES = "def test_passes(own, shared): assert (own.is_dir(), shared.is_dir()) == (True, True)\n"
FAILS = "def test_fails(own): assert not own.is_dir()\n"
PASSES_AGAIN = "tries = []\ndef test_again(own): tries.append(own); assert len(tries) == 2\n"


@pytest.mark.parametrize("processes", ["0", "1"])
def test_folders_of_a_file_that_passed_are_removed(tmp_path: Path, processes: str) -> None:
    (tmp_path / "conftest.py").write_text(FIXTURES)
    for name, content in {
        "test_one.py": PASSES,
        "test_two.py": PASSES + FAILS,
        "test_three.py": PASSES_AGAIN,
        "test_four.py": PASSES,
    }.items():
        (tmp_path / name).write_text(content)
    top = tmp_path / "top"
    words = ("-n", processes, "--dist", "loadfile", "--reruns", "1", "--basetemp", str(top))

    subprocess.run(
        [sys.executable, "-m", "pytest", "-p", PLUGIN, *words, str(tmp_path)],
        check=False,
        stdout=subprocess.DEVNULL,
    )

    kept = {found.name for found in top.rglob("*0") if not found.is_symlink()} - {"popen-gw0"}
    assert kept == {"shared0", "test_two0", "test_three0"}
