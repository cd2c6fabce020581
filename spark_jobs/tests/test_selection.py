"""Selection of archived messages, in a folder and in an object store."""

from __future__ import annotations

import subprocess
import sys
from datetime import timedelta
from typing import Any

import pytest
from pyspark.sql import SparkSession

from spark_jobs.archive.delta_archive import read_archive
from spark_jobs.lib.job_failures import JobFailed
from spark_jobs.replay.selection import (
    Selection,
    Span,
    UnknownQueue,
    WrongPredicate,
    matching,
    selected_files,
)
from spark_jobs.tests.archives import BEGINNING, archived, attributes, write_archive
from spark_jobs.tests.buckets import bucket
from storage.lake.table import Lake

DAY = timedelta(days=1)
ROWS = [
    archived(1, receive_count=3),
    archived(2, attributes=attributes({"kind": ("String.foo", "card"), "raw": ("Binary", b"\0")})),
    archived(3, sent_at=BEGINNING - DAY, removed_at=BEGINNING),
    archived(4, sent_at=BEGINNING + DAY, reason="deleted", message_group_id="g"),
    archived(5, queue="others"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Lake:
    path = tmp_path_factory.mktemp("lake") / "Läke {a,b} *? #1%: =+&'"
    path.mkdir()
    folder = Lake(str(path))
    write_archive(folder, ROWS)
    return folder


def positions(spark: SparkSession, lake: Lake, selection: Selection) -> set[int]:
    if not (files := selected_files(lake, selection)):
        return set()
    rows = matching(read_archive(spark, lake, files), selection)
    return {row.position for row in rows.select("position").collect()}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, {1, 2, 3, 4}),
        ({"queue": "others"}, {5}),
        ({"sent": Span(after=BEGINNING)}, {1, 2, 4}),
        ({"sent": Span(before=BEGINNING)}, {3}),
        ({"sent": Span(BEGINNING + timedelta(seconds=1), BEGINNING + timedelta(seconds=2))}, {1}),
        ({"removed": Span(before=BEGINNING + timedelta(seconds=1))}, {3}),
        ({"removed": Span(after=BEGINNING + timedelta(seconds=1))}, {1, 2, 4}),
        ({"message_ids": ("id-2", "id-4", "id-5")}, {2, 4}),
        ({"reason": "deleted"}, {4}),
        ({"where": "attributes['kind'].string_value = 'card'"}, {2}),
        ({"where": "receive_count > 2 or body like '%-4'"}, {1, 4}),
        ({"account": "000000000000", "reason": "expired", "where": "position < 2"}, {1}),
    ],
)
def test_selection_means(
    spark: SparkSession, folder: Lake, given: dict[str, Any], expected: set[int]
) -> None:
    assert positions(spark, folder, Selection(**({"queue": "orders"} | given))) == expected


@pytest.mark.parametrize("where", ["nope = 1", "body", "body =", "sum(size) > 1"])
def test_wrong_predicate_is_said_in_one_line(spark: SparkSession, folder: Lake, where: str) -> None:
    selection = Selection("orders", where=where)
    rows = read_archive(spark, folder, selected_files(folder, selection))

    with pytest.raises(WrongPredicate) as raised:
        matching(rows, selection)

    assert "\n" not in str(raised.value)


def test_files_of_other_queues_and_days_are_not_read(folder: Lake) -> None:
    span = Span(BEGINNING - DAY, BEGINNING)

    files = selected_files(folder, Selection("orders", sent=span))

    assert {(file.queue, file.day) for file in files} == {
        ("orders", (BEGINNING - DAY).date()),
        ("orders", BEGINNING.date()),
    }


def test_account_must_be_named_where_several_have_the_queue(lake: Lake) -> None:
    write_archive(lake, [archived(1), archived(2, account="111111111111")])

    with pytest.raises(JobFailed, match="000000000000, 111111111111"):
        selected_files(lake, Selection("orders"))

    (file,) = selected_files(lake, Selection("orders", "111111111111"))
    assert file.account == "111111111111"


def test_account_that_has_no_such_queue_is_an_error(lake: Lake) -> None:
    write_archive(lake, [archived(1)])

    with pytest.raises(JobFailed, match=r"222222222222 has no queue orders .* 000000000000 has"):
        selected_files(lake, Selection("orders", "222222222222"))


def test_queue_that_the_archive_lacks_is_told_with_similar_ones(lake: Lake) -> None:
    write_archive(lake, [archived(1), archived(2, queue="orders-eu"), archived(3, queue="mails")])

    with pytest.raises(UnknownQueue) as unknown:
        selected_files(lake, Selection("ordres"))

    assert unknown.value.near == ["orders", "orders-eu"]


def test_lake_without_an_archive_is_said_in_one_line(lake: Lake) -> None:
    with pytest.raises(JobFailed, match="there is no archive in"):
        selected_files(lake, Selection("orders"))


@pytest.mark.slow
def test_object_store_gives_the_rows_that_a_folder_gives(spark: SparkSession, folder: Lake) -> None:
    selection = Selection("orders")
    with bucket() as store:
        write_archive(store, ROWS)
        both = [
            sorted(read_archive(spark, each, selected_files(each, selection)).collect())
            for each in (folder, store)
        ]
        few = positions(spark, store, Selection("orders", where="receive_count > 2"))

    assert both[0] == both[1]
    assert len(both[0]) == 4
    assert few == {1}


def test_executors_need_pyarrow_only() -> None:
    program = "import sys, spark_jobs.archive.parquet_reading; print(*sys.modules)"

    said = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout

    assert not {"pyspark", "deltalake", "boto3", "click"} & set(said.split())
