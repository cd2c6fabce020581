"""The sweep removes no file that a table version has or that a run could still commit."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from spark_jobs.archive.archive_job import Plan, commit_parts, plan
from spark_jobs.archive.archive_parts import Part
from spark_jobs.archive.delta_archive import commit_to, fence, open_archive
from spark_jobs.archive.executor import write_segments_here
from spark_jobs.archive.runs import Run, sweep
from spark_jobs.lib.delta import NotCommitted
from spark_jobs.tests.lakes import archived_rows, names, orphans, write_batches
from storage.lake.archive_schema import ARCHIVE, RUNS
from storage.lake.table import Lake

PAUSED = "archive-" + "0" * 32


@pytest.fixture
def written(lake: Lake) -> tuple[Plan, list[Part]]:
    """A run with parts written but not committed yet; to others it looks dead."""
    open_archive(lake)
    write_batches(lake, 2, 5)
    planned = plan(lake, {}, {}, print)
    return planned, write_segments_here(lake, f"part-{PAUSED}-0", planned.segments).parts


def _sweep(lake: Lake, run: Run) -> int:
    run.leaves_orphans = True
    return sweep(lake, run)


def age(lake: Lake, path: str, seconds: float) -> None:
    at = time.time() - seconds
    os.utime(lake.path(path), (at, at))


def test_run_whose_parts_were_swept_cannot_commit_them(
    lake: Lake, written: tuple[Plan, list[Part]]
) -> None:
    with Run(lake, "archive") as run:
        assert _sweep(lake, run) == len(written[1]) > 0

    assert commit_parts(lake, *written) is None
    assert archived_rows(lake) == []
    assert len(plan(lake, {}, {}, print).segments) == 2


def test_run_that_commits_while_the_sweep_looks_keeps_its_parts(
    lake: Lake, written: tuple[Plan, list[Part]]
) -> None:
    seen_by_sweep = open_archive(lake)

    assert commit_parts(lake, *written) is not None
    with pytest.raises(NotCommitted):
        commit_to(seen_by_sweep, [], {}, fence(seen_by_sweep) + 1)

    with Run(lake, "archive") as run:
        assert _sweep(lake, run) == 0
    assert len(archived_rows(lake)) == 10


def test_run_that_looked_before_a_sweep_is_refused_by_delta_itself(
    lake: Lake, written: tuple[Plan, list[Part]]
) -> None:
    seen_by_run = open_archive(lake)
    with Run(lake, "archive") as run:
        _sweep(lake, run)

    with pytest.raises(NotCommitted):
        commit_to(seen_by_run, [], written[0].after, 0)


def test_parts_stay_while_another_run_lives(lake: Lake, written: tuple[Plan, list[Part]]) -> None:
    with Run(lake, "archive") as other, Run(lake, "archive") as run:
        age(lake, f"{RUNS}/{other.name}.json", 500)
        assert _sweep(lake, run) == 0

    assert len(orphans(lake)) == len(written[1])
    assert commit_parts(lake, *written) is not None


def test_run_without_a_heartbeat_for_ten_minutes_is_dead(
    lake: Lake, written: tuple[Plan, list[Part]]
) -> None:
    note = f"{RUNS}/archive-of-the-dead.json"
    lake.write(note, b"{}")
    age(lake, note, 700)

    with Run(lake, "archive") as run:
        assert _sweep(lake, run) == len(written[1])

    assert lake.list(RUNS) == []


def test_run_that_ended_without_its_sweep_has_the_next_one_sweep(
    lake: Lake, written: tuple[Plan, list[Part]]
) -> None:
    with Run(lake, "archive") as ended:
        ended.leaves_orphans = True

    with Run(lake, "archive") as run:
        assert sweep(lake, run) == len(written[1])

    assert lake.list(RUNS) == []


def test_run_without_orphans_lists_nothing_unless_another_one_died(
    lake: Lake, written: tuple[Plan, list[Part]]
) -> None:
    with Run(lake, "archive") as run:
        assert sweep(lake, run) == 0

    assert len(orphans(lake)) == len(written[1])


def test_drafts_of_killed_writers_go_and_what_is_not_ours_stays(
    lake: Lake, written: tuple[Plan, list[Part]]
) -> None:
    assert commit_parts(lake, *written) is not None
    folder = Path(lake.path(ARCHIVE)) / "account=1/queue=q/day=2026-11-21"
    folder.mkdir(parents=True)
    (folder / ".draft-abc").write_bytes(b"half")
    (folder / "part-00000-c000.parquet").write_bytes(b"of another writer")

    with Run(lake, "archive") as run:
        assert _sweep(lake, run) == 1

    assert [path.name for path in folder.iterdir()] == ["part-00000-c000.parquet"]
    assert names(archived_rows(lake)) == names(write_batches(lake, 2, 5))


def test_note_of_a_run_is_there_while_it_lasts(lake: Lake) -> None:
    with Run(lake, "compact") as run:
        assert [file.path for file in lake.list(RUNS)] == [f"{RUNS}/{run.name}.json"]
        assert run.others() == ([], [])

    assert lake.list(RUNS) == []
