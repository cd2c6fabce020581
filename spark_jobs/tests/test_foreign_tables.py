"""A table at LAKE/archive that is not the archive's, or not the same any more, loses no message."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.transaction import RemoveAction

from spark_jobs.archive import archive_job as steps
from spark_jobs.archive.compact import Keep, run_compact
from spark_jobs.archive.delta_archive import open_archive, table_files
from spark_jobs.archive.parquet_reading import read_table_files
from spark_jobs.tests.job_services import ArchiveJob, no_session
from spark_jobs.tests.lakes import SOURCE, archived_rows, names, write_batches
from storage.lake.archive_schema import ARCHIVE, SEGMENTS, TABLE, TABLE_PARTITIONS, arrow_schema
from storage.lake.table import Lake, LakeUnusable


def _other_columns(lake: Lake) -> None:
    write_deltalake(lake.uri(ARCHIVE), pa.table({"id": [1], "name": ["theirs"]}))


def _one_type_differs(lake: Lake) -> None:
    schema = arrow_schema(TABLE)
    at = schema.get_field_index("receive_count")
    schema = schema.set(at, pa.field("receive_count", pa.string()))
    DeltaTable.create(lake.uri(ARCHIVE), schema, partition_by=list(TABLE_PARTITIONS))


def _other_partitions(lake: Lake) -> None:
    DeltaTable.create(lake.uri(ARCHIVE), arrow_schema(TABLE), partition_by=["queue"])


def _unpartitioned(lake: Lake) -> None:
    DeltaTable.create(lake.uri(ARCHIVE), arrow_schema(TABLE))


def _column_that_must_be_given(lake: Lake) -> None:
    schema = arrow_schema(TABLE).append(pa.field("theirs", pa.string(), nullable=False))
    DeltaTable.create(lake.uri(ARCHIVE), schema, partition_by=list(TABLE_PARTITIONS))


def _no_table(lake: Lake) -> None:
    lake.write(f"{ARCHIVE}/2019/photos.parquet", b"theirs")


def _a_file(lake: Lake) -> None:
    lake.write(ARCHIVE, b"theirs")


FOREIGN = [
    _other_columns,
    _one_type_differs,
    _other_partitions,
    _unpartitioned,
    _column_that_must_be_given,
    _no_table,
    _a_file,
]


def _contents(lake: Lake) -> dict[str, bytes]:
    top = Path(lake.path(ARCHIVE))
    files = [top] if top.is_file() else [path for path in top.rglob("*") if path.is_file()]
    return {str(path): path.read_bytes() for path in files}


@pytest.mark.parametrize("make", FOREIGN)
def test_foreign_table_is_named_and_left_alone_and_no_message_goes(
    job: ArchiveJob, make: Callable[[Lake], None]
) -> None:
    make(job.lake)
    before = _contents(job.lake)
    write_batches(job.lake, 2, 5)
    job.service.sealed[SOURCE, 0] = 2

    with pytest.raises(LakeUnusable) as refused:
        job.run()

    assert job.lake.uri(ARCHIVE) in str(refused.value)
    assert "\n" not in str(refused.value)
    assert job.service.told == []
    assert len(job.lake.list(SEGMENTS)) == 2
    assert _contents(job.lake) == before


@pytest.mark.parametrize("make", FOREIGN)
def test_compaction_leaves_a_foreign_table_alone(lake: Lake, make: Callable[[Lake], None]) -> None:
    make(lake)
    before = _contents(lake)

    with pytest.raises(LakeUnusable, match=lake.uri(ARCHIVE)):
        run_compact(
            lake, no_session, keep=Keep(1, 0, 0), today=datetime.now(UTC).date(), warn=print
        )

    assert _contents(lake) == before


def test_run_without_segments_does_not_look_at_the_table(job: ArchiveJob) -> None:
    _other_columns(job.lake)
    job.open_session = no_session

    assert str(job.run()).startswith("nothing to archive")

    assert job.warnings == []


def _replace(lake: Lake, make: Callable[[Lake], object]) -> None:
    shutil.rmtree(lake.path(ARCHIVE))
    make(lake)


@pytest.mark.parametrize("make", [open_archive, _other_columns, _no_table])
def test_table_replaced_before_the_acknowledgement_loses_no_message(
    job: ArchiveJob, make: Callable[[Lake], object]
) -> None:
    rows = write_batches(job.lake, 2, 5)
    job.service.sealed[SOURCE, 0] = 2
    job.service.before["/_holdfast/archive"] = [lambda: None, lambda: _replace(job.lake, make)]

    with_error = make is not open_archive
    if with_error:
        with pytest.raises(LakeUnusable, match=job.lake.uri(ARCHIVE)):
            job.run()
    else:
        assert job.run().acknowledged == 0

    assert job.service.archived == {}
    assert len(job.lake.list(SEGMENTS)) == 2
    _replace(job.lake, open_archive)
    assert job.run().acknowledged == 2
    assert names(archived_rows(job.lake)) == names(rows)


def test_table_replaced_between_write_and_commit_gets_whole_parts(
    job: ArchiveJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = write_batches(job.lake, 2, 5)
    job.service.sealed[SOURCE, 0] = 2
    replaced: list[Lake] = []
    verify = steps.verify

    def then_replace(*arguments: object) -> None:
        verify(*arguments)  # type: ignore[arg-type]
        if not replaced:
            replaced.append(job.lake)
            _replace(job.lake, open_archive)

    monkeypatch.setattr(steps, "verify", then_replace)

    assert job.run().acknowledged == 2

    assert names(archived_rows(job.lake)) == names(rows)


def _remove_a_file(lake: Lake) -> None:
    """Take the rows of a file out of the table, as a DELETE of another program does."""
    table = open_archive(lake)
    file = table_files(table)[0]
    values: dict[str, str | None] = dict(zip(TABLE_PARTITIONS, file.partition, strict=True))
    gone = RemoveAction(file.path, True, 0, file.size, values)
    table.create_write_transaction([gone], "append", table.schema(), list(TABLE_PARTITIONS))


def _lose_a_file(lake: Lake) -> None:
    Path(lake.path(f"{ARCHIVE}/{table_files(open_archive(lake))[0].path}")).unlink()


@pytest.mark.parametrize("lose", [_remove_a_file, _lose_a_file])
def test_batch_that_the_table_does_not_show_whole_is_not_acknowledged(
    job: ArchiveJob, lose: Callable[[Lake], None]
) -> None:
    write_batches(job.lake, 2, 5)
    job.service.sealed[SOURCE, 0] = 2
    job.service.before["/_holdfast/archive"] = [lambda: None, lambda: lose(job.lake)]

    assert job.run().acknowledged == 0

    assert job.service.told == []
    assert len(job.lake.list(SEGMENTS)) == 2
    assert "the table has" in job.warnings[0]


def test_column_that_a_later_version_added_is_compatible(job: ArchiveJob) -> None:
    later = arrow_schema(TABLE).append(pa.field("priority", pa.int32()))
    DeltaTable.create(job.lake.uri(ARCHIVE), later, partition_by=list(TABLE_PARTITIONS))
    rows = write_batches(job.lake, 2, 5)
    job.service.sealed[SOURCE, 0] = 2

    assert job.run().acknowledged == 2

    found = archived_rows(job.lake)
    assert names(found) == names(rows)
    assert {row["priority"] for row in found} == {None}


def test_rows_of_a_later_version_are_read_and_not_rewritten(job: ArchiveJob) -> None:
    rows = write_batches(job.lake, 2, 5)
    job.run()
    later = open_archive(job.lake).to_pyarrow_table()
    later = later.append_column("priority", pa.array([7] * later.num_rows, pa.int32()))
    write_deltalake(job.lake.uri(ARCHIVE), later, mode="overwrite", schema_mode="overwrite")
    write_deltalake(job.lake.uri(ARCHIVE), later, mode="append")
    files = table_files(open_archive(job.lake))
    warnings: list[str] = []

    listed = [pa.RecordBatch.from_pylist([file._asdict() for file in files])]
    found = [row for batch in read_table_files(job.lake, iter(listed)) for row in batch.to_pylist()]
    run_compact(
        job.lake,
        no_session,
        keep=Keep(None, 168, 35),
        today=datetime.now(UTC).date(),
        warn=warnings.append,
    )

    assert names(found) == names([*rows, *rows])
    assert [found[0].get("priority"), len(warnings)] == [None, len(files) // 2]
    assert "it has other columns" in warnings[0]
    assert table_files(open_archive(job.lake)) == files


def test_batches_whose_segments_are_gone_are_not_acknowledged(job: ArchiveJob) -> None:
    write_batches(job.lake, 2, 5)
    job.service.sealed[SOURCE, 0] = 2
    job.service.fails = {"/_holdfast/archive/archived"}
    job.run()
    job.service.fails = set()
    first, _ = job.lake.list(SEGMENTS)
    job.lake.remove(first.path)

    assert job.run().acknowledged == 0

    assert job.service.archived == {}
    assert "cannot be compared" in job.warnings[0]
