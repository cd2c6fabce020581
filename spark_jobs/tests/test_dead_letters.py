"""The dead-letters job: groups of messages, and rows of the table that a run replaces."""

from __future__ import annotations

import json
import re
from contextlib import AbstractContextManager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from spark_jobs.archive.delta_archive import archived_files
from spark_jobs.dead_letters.dead_letters_job import (
    REPORT,
    command,
    commit,
    compute,
    run_dead_letters,
)
from spark_jobs.dead_letters.error_shapes import NO_ERROR, REPLACED, SEALED, SHAPE_MAX, shape
from spark_jobs.dead_letters.letter_groups import GROUPS, Grouping
from spark_jobs.lib.delta import open_table
from spark_jobs.lib.spark import OpenSession
from spark_jobs.tests.archives import BEGINNING, Row, archived, attributes, write_archive
from storage.lake.archive_schema import DEAD_LETTERS
from storage.lake.table import Lake

ARN = "arn:aws:sqs:us-east-1:000000000000:orders"
SPAN = BEGINNING - timedelta(days=30), BEGINNING + timedelta(days=30)


def letter(position: int, body: object = "", **columns: Any) -> Row:
    """A dead letter of `orders`."""
    text = body if isinstance(body, str) else json.dumps(body)
    return archived(
        position, text, **{"queue": "orders-dlq", "dead_letter_queue_source_arn": ARN} | columns
    )


def named(**values: str) -> list[tuple[str, Row]]:
    return attributes({name: ("String", value) for name, value in values.items()})


def groups(
    spark: SparkSession,
    lake: Lake,
    rows: list[Row],
    asked: Grouping = Grouping(),  # noqa: B008
) -> dict[tuple[str, str, str], int]:
    """The number of messages of each (kind, name, value)."""
    write_archive(lake, rows)
    found = compute(spark, lake, archived_files(lake), asked).to_pylist()
    return {(row["kind"], row["name"], row["value"]): row["count"] for row in found}


def run(lake: Lake, open_session: OpenSession, asked: Grouping = Grouping()) -> str:  # noqa: B008
    return run_dead_letters(lake, open_session, asked, *SPAN)


def contents(lake: Lake) -> list[Row]:
    rows = open_table(lake, DEAD_LETTERS, GROUPS).to_pyarrow_dataset().to_table().to_pylist()
    return sorted(rows, key=lambda row: [str(value) for value in row.values()])


def no_spark() -> AbstractContextManager[SparkSession]:
    raise AssertionError("there is nothing to do for Spark")


# -- error shapes ----------------------------------------------------------------------------------

SHAPES = {
    "Timeout after 3000 ms": "Timeout after <n> ms",
    "took 1.5 s, not 10,000.25": "took <n> s, not <n>",
    "order123456 of s3 not found": "order<n> of s3 not found",
    "no user 0b3f1c9e-8a5d-4c1e-9f00-1234567890ab here": "no user <uuid> here",
    "bad digest 9F86D081884C7D65 at 0x7ffe": "bad digest <hex> at <hex>",
    "defaced facade": "defaced facade",
    "mail to <ann.b+c@mail.example.com> bounced": "mail to <<email>> bounced",
    "GET https://api.example.com/v1/orders?id=7 failed": "GET <url> failed",
    "expired at 2026-11-20T08:15:00.123Z, now 2026-11-21": "expired at <time>, now <time>",
    "key 'a b', \"c\" or `d`; can't and won't": "key <text>, <text> or <text>; can't and won't",
    "  first line  \n at Foo.java:12\n": "first line",
    'Traceback (most recent call last):\n  File "a.py", line 7\nKeyError: 42\n': "KeyError: <n>",
    "a\t b   c": "a b c",
    "x" * 300: "x" * SHAPE_MAX,
    "   ": None,
}


def shapes_of(spark: SparkSession, texts: list[str]) -> list[str | None]:
    rows = spark.createDataFrame(list(enumerate(texts)), "position int, text string")
    shaped = rows.select("position", shape(f.col("text")).alias("shape")).collect()
    return [row["shape"] for row in sorted(shaped)]


def test_shapes_leave_out_what_differs(spark: SparkSession) -> None:
    assert dict(zip(SHAPES, shapes_of(spark, list(SHAPES)), strict=True)) == SHAPES


pieces = st.sampled_from(
    [
        "12",
        "3.5",
        "x1",
        "abc",
        " ",
        "'",
        '"',
        "-",
        ":",
        "@",
        ".com",
        "http://a",
        "deadbeef99",
        "2026-11-20",
        "0x1f",
        "/",
    ]
)


@settings(max_examples=3, deadline=None)
@given(st.lists(st.lists(pieces, min_size=1, max_size=12).map("".join), min_size=20, max_size=60))
def test_shapes_are_what_python_makes_of_the_same_patterns(
    spark: SparkSession, texts: list[str]
) -> None:
    def model(text: str) -> str | None:
        text = text.strip(" ")
        for pattern, stands_for in REPLACED:
            text = re.sub(pattern, stands_for, text, flags=re.ASCII)
        return text[:SHAPE_MAX].strip(" ") or None

    assert shapes_of(spark, texts) == [model(text) for text in texts]


# -- groups ----------------------------------------------------------------------------------------


def test_only_messages_of_a_redrive_policy_count(spark: SparkSession, lake: Lake) -> None:
    found = groups(spark, lake, [letter(1), archived(2), letter(3)])

    assert found == {("all", "", ""): 2, ("error", "", NO_ERROR): 2}


def test_error_is_found_where_it_is_told(spark: SparkSession, lake: Lake) -> None:
    rows = [
        letter(1, {"error": "from the body"}, attributes=named(ErrorMessage="from an attribute")),
        letter(2, attributes=named(ERROR_MESSAGE="from an attribute")),
        letter(3, {"errorMessage": "Timeout after 7 ms"}),
        letter(4, {"error": {"message": "inner 8", "code": 5}}),
        letter(5, {"exception": "java.io.IOException: pipe 9\n\tat A.b(A.java:3)"}),
        letter(6, {"message": "the last resort"}),
        letter(7, {"message": {"a": 1}, "error": ["x"]}),
        letter(8, attributes=named(ErrorCode="E-1042")),
        letter(9, "{no JSON"),
        letter(10, {"error": ""}),
    ]

    found = groups(spark, lake, rows)

    assert {value: count for (kind, _, value), count in found.items() if kind == "error"} == {
        "from an attribute": 2,
        "Timeout after <n> ms": 1,
        "inner <n>": 1,
        "java.io.IOException: pipe <n>": 1,
        "the last resort": 1,
        "E-1042": 1,
        NO_ERROR: 3,
    }


def test_sealed_messages_count_as_sealed(spark: SparkSession, lake: Lake) -> None:
    sealed = letter(1, sealed=b"\x00", data_key=7) | {"body": None}

    assert groups(spark, lake, [sealed, letter(2)]) == {
        ("all", "", ""): 2,
        ("error", "", SEALED): 1,
        ("error", "", NO_ERROR): 1,
    }


def test_attributes_and_fields_with_few_values_are_found(spark: SparkSession, lake: Lake) -> None:
    rows = [
        letter(
            number,
            {"eventType": f"e{number % 2}", "id": number, "detail": {"kind": "x"}},
            attributes=attributes(
                {
                    "tenant": ("String", f"t{number % 3}"),
                    "trace": ("String", f"trace-{number}"),
                    "raw": ("Binary", b"\x01"),
                }
            ),
        )
        for number in range(30)
    ]

    assert groups(spark, lake, rows) == {
        ("all", "", ""): 30,
        ("error", "", NO_ERROR): 30,
        ("attribute", "tenant", "t0"): 10,
        ("attribute", "tenant", "t1"): 10,
        ("attribute", "tenant", "t2"): 10,
        ("field", "eventType", "e0"): 15,
        ("field", "eventType", "e1"): 15,
    }


def test_what_is_asked_for_is_grouped_by_however_many_values(
    spark: SparkSession, lake: Lake
) -> None:
    rows = [
        letter(
            number,
            {"a": {"b.c": 1, "b": number}, "type": "x"},
            attributes=named(trace=f"t{number}", tenant="x"),
        )
        for number in range(25)
    ]

    found = groups(spark, lake, rows, Grouping(("trace",), ("a.b",)))

    assert {(kind, name) for kind, name, _ in found} == {
        ("all", ""),
        ("error", ""),
        ("attribute", "trace"),
        ("field", "a.b"),
    }
    assert len(found) == 2 + 25 + 25


def test_rare_values_are_others(spark: SparkSession, lake: Lake) -> None:
    rows = [letter(n, attributes=named(trace=f"t{n}")) for n in range(203)]
    rows += [letter(300 + n, attributes=named(trace="t202")) for n in range(5)]

    found = groups(spark, lake, rows, Grouping(("trace",)))

    of_trace = {value: count for (kind, _, value), count in found.items() if kind == "attribute"}
    assert (len(of_trace), of_trace["t202"], of_trace["(other)"]) == (201, 6, 3)
    assert sum(of_trace.values()) == 208


def test_groups_say_when_and_name_an_example(spark: SparkSession, lake: Lake) -> None:
    write_archive(lake, [letter(number) for number in (3700, 10, 90_000)])

    rows = compute(spark, lake, archived_files(lake), Grouping(by_hour=True)).to_pylist()

    everything = [row for row in rows if row["kind"] == "all"]
    assert [(str(row["day"]), row["hour"].hour, row["count"]) for row in everything] == [
        ("2026-11-20", 12, 1),
        ("2026-11-20", 13, 1),
        ("2026-11-21", 13, 1),
    ]
    assert everything[0] | {"day": None, "hour": None} == {
        "day": None,
        "hour": None,
        "account": "000000000000",
        "region": "us-east-1",
        "source_queue": "orders",
        "queue": "orders-dlq",
        "kind": "all",
        "name": "",
        "value": "",
        "count": 1,
        "first_sent_at": BEGINNING + timedelta(seconds=10),
        "last_sent_at": BEGINNING + timedelta(seconds=10),
        "message_id": "id-10",
    }


# -- the table and the report ----------------------------------------------------------------------


def test_rerun_leaves_the_same_rows(lake: Lake, open_session: OpenSession) -> None:
    write_archive(lake, [letter(n, {"error": f"Timeout after {n} ms"}) for n in range(3)])

    first = run(lake, open_session)
    before = contents(lake)
    second = run(lake, open_session)

    assert (
        first
        == second
        == (
            "dead-letters: 3 messages of 1 queue, 1 error shape; "
            "most often Timeout after <n> ms (3)"
        )
    )
    assert contents(lake) == before


def test_days_that_the_archive_has_no_longer_stay(
    spark: SparkSession, lake: Lake, open_session: OpenSession
) -> None:
    write_archive(lake, [letter(1), letter(100_000)])
    run(lake, open_session)
    files = [file for file in archived_files(lake) if file.day == BEGINNING.date()]

    asked = Grouping(("none",))
    commit(lake, files, compute(spark, lake, files, asked).slice(0, 1))

    assert [str(row["day"]) for row in contents(lake)] == ["2026-11-20"] + ["2026-11-21"] * 2


def test_days_outside_the_range_are_left_alone(lake: Lake, open_session: OpenSession) -> None:
    write_archive(lake, [letter(1), letter(100_000)])

    run_dead_letters(lake, open_session, Grouping(), SPAN[0], BEGINNING)

    assert {str(row["day"]) for row in contents(lake)} == {"2026-11-20"}


def test_archive_without_dead_letters_is_no_failure(lake: Lake, open_session: OpenSession) -> None:
    write_archive(lake, [archived(1)])

    assert run(lake, open_session) == "dead-letters: none"
    assert b"There are none." in (lake.read(REPORT) or b"")


def test_range_without_files_needs_no_spark(lake: Lake) -> None:
    write_archive(lake, [letter(1)])

    said = run_dead_letters(lake, no_spark, Grouping(), SPAN[1], SPAN[1])

    assert said == "dead-letters: the archive has no messages of these days"


def test_report_counts_days_together_and_escapes_texts(
    lake: Lake, open_session: OpenSession
) -> None:
    text = "<script>alert(1)</script>"
    rows = [letter(n * 50_000, {"error": text, "type": text}) for n in range(4)]
    write_archive(lake, [*rows, letter(5, {"error": "rare"})])

    run(lake, open_session)

    report = (lake.read(REPORT) or b"").decode()
    assert "<script" not in report
    assert "&lt;script&gt;alert(&lt;n&gt;)" in report
    assert re.findall(r'<td class="">(\d+)</td>', report)[:2] == ["4", "1"]
    assert not re.search(r"(src|href)=|@import|url\(", report)


@pytest.mark.parametrize("field", ["a..b", "", "it's"])
def test_wrong_field_is_wrong_use(tmp_path: Path, field: str) -> None:
    result = CliRunner().invoke(command, ["--lake", str(tmp_path), "--field", field])

    assert (result.exit_code, "--field" in result.output) == (2, True)
