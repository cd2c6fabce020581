"""A repeated test gets all that its fixtures make anew."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

FIXTURES = """
import pytest

@pytest.fixture(scope="session")
def service():
    print("a service starts")
    yield set()
    print("a service ends")

@pytest.fixture(scope="module")
def queue(service, request):
    assert request.path not in service, "there is a queue already"
    service.add(request.path)
    return []
"""
FAILS_ONCE = """
import pytest

tries = []

@pytest.fixture(scope="module")
def filled(queue):
    queue.append("message")
    tries.append("set up")
    assert queue == ["message"]
    assert len(tries) > 1

def test_needs_what_fails_once(filled, queue):
    assert queue == ["message"]

def test_sends_and_fails_once(queue):
    queue.append("another")
    tries.append("test")
    assert queue[-2:] == ["message", "another"] if len(tries) == 3 else queue == ["another"]
    assert len(tries) > 3
"""
PASSES = "def test_passes(service, queue): assert len(service) == 2 and queue == []\n"


def test_a_second_try_finds_nothing_of_the_first(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(FIXTURES)
    (tmp_path / "test_one.py").write_text(FAILS_ONCE)
    (tmp_path / "test_two.py").write_text(PASSES)
    words = ("-p", "compat_tests.second_try", "-n", "0", "-s", "--reruns", "1", str(tmp_path))

    done = subprocess.run(
        [sys.executable, "-m", "pytest", *words], check=False, capture_output=True, text=True
    )

    assert " 3 passed, 2 rerun" in done.stdout
    assert done.stdout.count("a service starts") == done.stdout.count("a service ends") == 3
