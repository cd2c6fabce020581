"""A table and segments of a version before 0.2 lack the columns of dead letters: they are read, and
the table gets the columns."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from deltalake import DeltaTable

from spark_jobs.archive.delta_archive import open_archive
from spark_jobs.tests.job_services import ArchiveJob
from spark_jobs.tests.lakes import BEGUN, SOURCE, archived_rows, message, messages, write_segment
from storage.lake.archive_schema import (
    ADDED,
    ARCHIVE,
    SEGMENT,
    TABLE,
    TABLE_PARTITIONS,
    Columns,
    arrow_schema,
)

LETTER: dict[str, Any] = {
    "dead_letter_cause": "expired",
    "dead_letter_at": BEGUN + timedelta(hours=1),
    "dead_letter_hops": 3,
}


def before(columns: Columns) -> Columns:
    """The columns of the version before."""
    return {name: kind for name, kind in columns.items() if name not in ADDED}


def test_old_segments_and_an_old_table_get_the_columns_of_dead_letters(job: ArchiveJob) -> None:
    schema = arrow_schema(before(TABLE))
    DeltaTable.create(job.lake.uri(ARCHIVE), schema, partition_by=list(TABLE_PARTITIONS))
    table_id = DeltaTable(job.lake.uri(ARCHIVE)).metadata().id
    old = messages(5)
    write_segment(job.lake, old, columns=before(SEGMENT))
    job.service.sealed[SOURCE, 0] = 1
    assert job.run().acknowledged == 1
    new = [message(6, batch=2, **LETTER), message(7, batch=2)]
    write_segment(job.lake, new)
    job.service.sealed[SOURCE, 0] = 2

    assert job.run().acknowledged == 1

    table = open_archive(job.lake)
    assert table.metadata().id == table_id
    assert {field.name for field in table.schema().fields} == set(TABLE)
    found = [{name: row[name] for name in SEGMENT} for row in archived_rows(job.lake)]
    assert sorted(found, key=lambda row: row["position"]) == [*old, *new]
    assert job.warnings == []


def test_files_without_the_columns_are_read_beside_others(job: ArchiveJob) -> None:
    schema = arrow_schema(before(TABLE))
    DeltaTable.create(job.lake.uri(ARCHIVE), schema, partition_by=list(TABLE_PARTITIONS))
    old = messages(3)
    write_segment(job.lake, old, columns=before(SEGMENT))
    job.service.sealed[SOURCE, 0] = 1
    job.run()

    frame = open_archive(job.lake).to_pyarrow_table()

    assert frame["dead_letter_cause"].to_pylist() == [None] * 3
