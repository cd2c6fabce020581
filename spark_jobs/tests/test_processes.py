"""The jobs as processes: on clusters, killed at every step, and by their command line."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

from spark_jobs.__main__ import main
from spark_jobs.tests.job_services import FakeService
from spark_jobs.tests.lakes import (
    SOURCE,
    archived_rows,
    message,
    messages,
    names,
    orphans,
    write_batches,
    write_segment,
)
from spark_jobs.tests.processes import ended, environment, job, kill_when, standalone_cluster, wait
from storage.lake.archive_schema import ARCHIVE, RUNS
from storage.lake.table import Lake

LARGE = "x" * 500_000
"""Bodies of which 300 are too much for a run without Spark."""


def forget_runs(lake: Lake) -> None:
    """Age the files of killed runs by ten minutes, so that they count as dead."""
    at = time.time() - 700
    for note in lake.list(RUNS):
        os.utime(lake.path(note.path), (at, at))


@pytest.mark.slow
def test_job_that_is_killed_at_any_step_loses_and_repeats_nothing(
    lake: Lake, service: FakeService, tmp_path_factory: pytest.TempPathFactory
) -> None:
    temporary = tmp_path_factory.mktemp("temporary")
    start = partial(job, variables={"TMPDIR": str(temporary)})
    rows = []
    for batch in range(1, 4):
        body = f"{batch}{LARGE}"
        written = [
            message(i, batch=batch, body=body) for i in range(100 * batch - 99, 100 * batch + 1)
        ]
        write_segment(lake, written)
        rows += written
    service.sealed[SOURCE, 0] = 4
    place = ("--lake", lake.url, "--url", service.endpoint)
    arguments = ("archive", *place, "--master", "local[2,4]")

    # While its tasks write.
    kill_when(start(*arguments), lambda: any("part-" in file.path for file in lake.list(ARCHIVE)))
    assert names(archived_rows(lake)) in (names([]), names(rows))

    # While it commits, or right after that.
    log = Path(lake.path(f"{ARCHIVE}/_delta_log"))
    kill_when(start(*arguments), lambda: (log / f"{1:020d}.json").exists())
    assert names(archived_rows(lake)) == names(rows)

    # When the service has taken the acknowledgement, and before the answer comes.
    fourth = messages(100, batch=4)
    write_segment(lake, fourth)
    service.stall = "/_holdfast/archive/archived"
    service.told.clear()
    kill_when(start(*arguments), lambda: bool(service.told))
    service.stall = ""
    assert service.archived == {(SOURCE, 0): 4}
    assert names(archived_rows(lake)) == names(rows + fourth)

    forget_runs(lake)
    status, output, error = ended(start(*arguments))

    assert status == 0, error
    assert output.startswith("archive: nothing to archive, 4 segments acknowledged, ")
    assert names(archived_rows(lake)) == names(rows + fourth)
    assert orphans(lake) == []
    assert lake.list(RUNS) == []
    assert [*temporary.iterdir()] == []


@pytest.mark.slow
def test_standalone_cluster_archives_and_lost_executors_cost_time_only(
    lake: Lake, service: FakeService, tmp_path_factory: pytest.TempPathFactory
) -> None:
    rows = write_batches(lake, 4, 25)

    with standalone_cluster(tmp_path_factory.mktemp("cluster"), workers=2) as master:
        done = subprocess.run(
            [sys.executable, "-m", "spark_jobs.tests.lose_executor", lake.url, master, "027"],
            env=environment(),
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )

    assert done.returncode == 0, done.stderr
    assert "ExecutorLostFailure" not in done.stderr.splitlines()[-1]
    assert names(archived_rows(lake)) == names(rows)
    archive = Path(lake.path(ARCHIVE))
    modes = {(path.is_dir(), path.stat().st_mode & 0o777) for path in archive.rglob("*")}
    assert modes == {(True, 0o750), (False, 0o640)}
    assert orphans(lake)
    status, _, error = ended(
        job("archive", "--no-seal", "--lake", lake.url, "--url", service.endpoint)
    )
    assert status == 0, error
    assert orphans(lake) == []


@pytest.mark.slow
def test_job_that_is_asked_to_end_notes_that_and_leaves_no_java(
    lake: Lake, service: FakeService
) -> None:
    rows = [message(i, body=f"{i}{LARGE}") for i in range(1, 301)]
    write_segment(lake, rows)
    process = job("archive", "--lake", lake.url, "--url", service.endpoint)
    wait(lambda: bool(lake.list_drafts(ARCHIVE)))

    process.terminate()
    status, output, error = ended(process)

    assert (status, output) == (143, ""), error
    assert "Traceback" not in error
    assert [file.name.endswith(".ended.json") for file in lake.list(RUNS)] == [True]
    wait(lambda: not is_alive(process.pid))
    assert archived_rows(lake) == []


def is_alive(group: int) -> bool:
    """True if a process of the group remains."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.slow
def test_service_that_is_away_is_said_in_one_line_and_by_the_exit_status(lake: Lake) -> None:
    status, output, error = ended(job("archive", "--lake", lake.url, "--url", "http://127.0.0.1:9"))

    assert status == 1
    assert output == "archive: nothing to archive, 0 segments acknowledged, 0 orphans removed\n"
    assert [line.split(";")[1] for line in error.splitlines()] == [
        " archiving the segments that are in the lake"
    ]


def test_wrong_umask_is_status_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOLDFAST_LAKE_UMASK", "777")

    test_wrong_use_is_status_2(["archive"], "HOLDFAST_LAKE_UMASK: must be", monkeypatch, capsys)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["archive"], "--lake"),
        (["archive", "--lake", "/nowhere"], "there is no folder /nowhere"),
        (["archive", "--lake", "/" + "x" * 300], "xx: File name too long"),
        (["archive", "--lake", "ftp://x/y"], "must be a folder or s3://"),
        (["archive", "--lake", ".", "--url", "nine"], "no http:// or https:// address"),
        (["archive", "--lake", ".", "--endpoint", "nine"], "no http:// or https:// address"),
        (["archive", "--lake", ".", "--data", "/nowhere"], "no service runs on /nowhere"),
        (["compact", "--lake", ".", "--keep-days", "-1"], "--keep-days"),
        (["unheard-of"], "unheard-of"),
    ],
)
def test_wrong_use_is_status_2(
    arguments: list[str],
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", ["holdfast jobs", *arguments])
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setattr(os, "umask", lambda _: 0)

    with pytest.raises(SystemExit) as exited:
        main()

    output, error = capsys.readouterr()
    assert (exited.value.code, output) == (2, "")
    assert said in error
