"""Scratch folders go with their jobs, or with the next job where one was killed."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from spark_jobs.lib.scratch import remove_leftovers, scratch_folder

_KILLED = """
import os, signal, subprocess, sys
from spark_jobs.lib.scratch import scratch_folder
with scratch_folder() as folder:
    (folder / "java").mkdir()
    (folder / "java" / "of the job").touch()
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of temporary files."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def killed_job(temporary: Path) -> Path:
    """The folder of a job that was killed."""
    environment = os.environ | {"TMPDIR": str(temporary)}
    assert subprocess.run([sys.executable, "-c", _KILLED], env=environment).returncode == -9
    (folder,) = temporary.iterdir()
    assert (folder / "java" / "of the job").exists()
    return folder


def test_a_folder_goes_at_the_end_of_its_job(temporary: Path) -> None:
    with scratch_folder() as folder:
        (folder / "x").touch()
        assert folder.parent == temporary
        assert folder.stat().st_mode & 0o777 == 0o700

    assert not folder.exists()


def test_that_of_a_killed_job_goes_with_the_next_and_that_of_a_running_one_stays(
    temporary: Path,
) -> None:
    dead = killed_job(temporary)

    with scratch_folder() as alive:
        remove_leftovers()

        assert not dead.exists()
        assert alive.exists()


def test_folders_of_others_stay(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    killed_job(temporary)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)

    remove_leftovers()

    assert len(list(temporary.iterdir())) == 1


def test_what_only_looks_like_a_scratch_folder_stays(temporary: Path) -> None:
    target = temporary / "target"
    (temporary / "holdfast-jobs-without-a-lock").mkdir()
    (temporary / "holdfast-jobs-file").touch()
    target.mkdir()
    (target / "lock").touch()
    (temporary / "holdfast-jobs-link").symlink_to(target)
    linked = temporary / "holdfast-jobs-linked-lock"
    linked.mkdir()
    (linked / "lock").symlink_to(target / "lock")

    remove_leftovers()

    assert len(list(temporary.iterdir())) == 5
    assert (target / "lock").exists()


def test_no_folder_of_temporary_files_is_no_failure(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(temporary / "none"))

    remove_leftovers()
