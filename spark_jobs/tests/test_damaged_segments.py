"""Batches are archived in order, and only if they are intact."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest

from spark_jobs.archive.archive_job import plan, verify
from spark_jobs.archive.executor import write_segments_here
from spark_jobs.archive.parquet_reading import Damaged
from spark_jobs.archive.segment_files import read_segment
from spark_jobs.lib.job_failures import JobFailed
from spark_jobs.tests.job_services import ArchiveJob
from spark_jobs.tests.lakes import (
    SOURCE,
    archived_rows,
    message,
    messages,
    names,
    orphans,
    with_flips,
    write_batches,
    write_segment,
)
from storage.lake.archive_schema import SEGMENT, SEGMENTS
from storage.lake.table import Lake

RUN = "archive-" + "0" * 32


def test_missing_batch_holds_back_its_own_shard_only(job: ArchiveJob) -> None:
    kept = write_batches(job.lake, 2, 5)
    write_segment(job.lake, messages(5, batch=5))
    kept += write_batches(job.lake, 1, 5, shard=1)

    job.run()

    assert names(archived_rows(job.lake)) == names(kept)
    assert job.warnings == [
        f"batches 3 to 4 of {SOURCE}, shard 0, missing in the lake: later ones wait"
    ]


def test_batches_begin_where_the_service_says_that_earlier_ones_are_archived(
    job: ArchiveJob,
) -> None:
    write_segment(job.lake, messages(5, batch=8))
    job.service.sealed[SOURCE, 0] = 8
    job.service.archived[SOURCE, 0] = 7

    assert job.run().archived.batches == 1
    assert job.warnings == []
    assert job.told == [
        f"batches up to 7 of {SOURCE}, shard 0, were archived before, and not in this table: it is "
        "new, or another one was in its place"
    ]
    job.run()
    assert job.told == []


def test_table_that_has_forgotten_batches_is_noticed(job: ArchiveJob) -> None:
    write_batches(job.lake, 1, 5)
    job.service.sealed[SOURCE, 0] = 8
    job.run()
    write_segment(job.lake, messages(5, batch=8))
    job.service.archived[SOURCE, 0] = 7

    assert job.run().archived.batches == 1
    assert job.warnings == [
        f"batches 2 to 7 of {SOURCE} were archived before, but are not in this table"
    ]


def test_segments_that_another_run_archived_and_removed_meanwhile_are_no_damage(
    job: ArchiveJob,
) -> None:
    rows = write_batches(job.lake, 3, 5)
    job.service.sealed[SOURCE, 0] = 3
    warnings: list[str] = []

    class Overtaken(Lake):
        """Another run archives all segments just before this one reads footers."""

        @contextmanager
        def open(self, path: str) -> Iterator[pa.NativeFile]:
            if self.list(SEGMENTS):
                assert job.run().acknowledged == 3
            with super().open(path) as stream:
                yield stream

    planned = plan(Overtaken(job.lake.url), {}, {}, warnings.append)

    assert planned.segments == []
    assert warnings == []
    assert names(archived_rows(job.lake)) == names(rows)


def test_lake_that_is_not_the_services_is_noticed(job: ArchiveJob) -> None:
    job.service.sealed[SOURCE, 0] = 3

    job.run()

    assert job.warnings == [
        f"the service has written batch 3 of {SOURCE}, but not to {job.lake.url}"
    ]


def changed_body(lake: Lake) -> str:
    rows = messages(20, batch=2)
    rows[13]["body"] = "something else"
    return write_segment(lake, rows)


def changed_checksum(lake: Lake) -> str:
    rows = messages(20, batch=2)
    rows[19] |= {"body": "else", "checksum": None}
    return write_segment(lake, [*rows[:19], message(40, batch=2, checksum=5)])


def missing_row(lake: Lake) -> str:
    return write_segment(lake, messages(20, batch=2), count=21)


def other_sum(lake: Lake) -> str:
    return write_segment(lake, messages(20, batch=2), checksum=5)


def other_identity(lake: Lake) -> str:
    return write_segment(lake, messages(20, batch=2), batch=3)


def later_format(lake: Lake) -> str:
    return write_segment(lake, messages(20, batch=2), format=2)


def rows_of_another_batch(lake: Lake) -> str:
    rows = messages(20, batch=2)
    rows[7]["batch"] = 1
    return write_segment(lake, rows)


def cut_file(lake: Lake) -> str:
    path = Path(lake.path(missing_row(lake)))
    path.write_bytes(path.read_bytes()[:-300])
    return f"{SEGMENTS}/{SOURCE}/shard-0/{path.name}"


def zeroed_page(lake: Lake) -> str:
    written = write_segment(lake, messages(20, batch=2))
    path = Path(lake.path(written))
    content = path.read_bytes()
    path.write_bytes(content[:600] + bytes(300) + content[900:])
    return written


def no_queue(lake: Lake) -> str:
    rows = messages(20, batch=2)
    rows[5]["queue"] = None
    return write_segment(lake, rows)


def no_instant(lake: Lake) -> str:
    rows = messages(20, batch=2)
    rows[5]["sent_at"] = None
    return write_segment(lake, rows)


def unsafe_queue(lake: Lake) -> str:
    rows = messages(20, batch=2)
    rows[5]["queue"] = "../../other"
    return write_segment(lake, rows)


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (changed_body, f"message {SOURCE}-0-34 has a wrong checksum"),
        (changed_checksum, f"message {SOURCE}-0-40 has a wrong checksum"),
        (missing_row, "20 rows with checksum"),
        (other_sum, "20 rows with checksum"),
        (other_identity, "it has an unexpected footer: {"),
        (later_format, "it has an unexpected footer: {"),
        (rows_of_another_batch, "it has rows of another batch"),
        (cut_file, "its footer cannot be read"),
        (zeroed_page, "batch-000000000002.parquet: "),
        (no_queue, "it has rows whose queue is None"),
        (no_instant, "it has rows without sent_at"),
        (unsafe_queue, "it has rows whose queue is '../../other'"),
    ],
)
def test_damaged_segment_is_named_and_holds_back_its_own_shard_only(
    damage: Callable[[Lake], str], reason: str, job: ArchiveJob
) -> None:
    _damaged(damage, reason, job)


@pytest.mark.parametrize("damage", [changed_body, zeroed_page])
def test_executor_that_finds_damage_names_the_segment(
    damage: Callable[[Lake], str], spark_job: ArchiveJob
) -> None:
    _damaged(damage, "batch-000000000002.parquet", spark_job)


def test_a_flipped_bit_in_any_column_is_damage(lake: Lake) -> None:
    """The rows' checksums cover body and attributes only; the pages have their own."""
    path = Path(lake.path(write_segment(lake, messages(20, batch=1))))
    (segment,) = plan(lake, {}, {}, print).segments
    columns: set[str] = set()
    for column in with_flips(path):
        columns.add(column)
        with pytest.raises(Damaged):
            list(read_segment(lake, segment))
    assert columns == set(SEGMENT)


def test_text_that_is_no_text_is_damage(lake: Lake) -> None:
    """In a segment without checksums of its pages."""
    path = write_segment(lake, messages(20, queue="sixteen-letters-"), checksums=False)
    (segment,) = plan(lake, {}, {}, print).segments
    file = Path(lake.path(path))
    file.write_bytes(file.read_bytes().replace(b"sixteen-letters-", b"sixteen-letter\xff-"))

    with pytest.raises(Damaged):
        list(read_segment(lake, segment))


def _damaged(damage: Callable[[Lake], str], reason: str, job: ArchiveJob) -> None:
    kept = [*write_batches(job.lake, 1, 20), *write_batches(job.lake, 1, 20, shard=1)]
    path = damage(job.lake)
    write_segment(job.lake, messages(20, batch=3))

    job.run()

    assert names(archived_rows(job.lake)) == names(kept)
    assert [path in warning and reason in warning for warning in set(job.warnings)] == [True]
    assert orphans(job.lake) == []
    assert job.lake.read(path) is not None


def test_rows_that_were_written_twice_or_not_at_all_are_not_committed(lake: Lake) -> None:
    write_batches(lake, 2, 5)
    segments = plan(lake, {}, {}, print).segments
    parts = write_segments_here(lake, f"part-{RUN}-0", segments).parts

    verify(segments, parts)
    for wrong in (parts[1:], [*parts, parts[0]]):
        with pytest.raises(JobFailed):
            verify(segments, wrong)
    with pytest.raises(JobFailed):
        verify(segments[1:], parts)
