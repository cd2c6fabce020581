"""A batch as a Parquet file: every message of it, in order, with checksums to verify it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.parquet as parquet
import pytest

from storage.lake import lake_segments
from storage.lake.archive_schema import (
    CHECKSUM_MODULUS,
    FOOTER_KEY,
    attribute_bytes,
    bucket_of,
    row_checksum,
)
from storage.lake.lake_segments import Written, not_written, write_segment
from storage.lake.table import Lake
from storage.tests.memory_store import MemoryStore
from visibility.content.content import contents_of
from visibility.contract.death import Death
from visibility.contract.model import Content
from visibility.contract.operations import MessageAttributeValue, SendMessage
from visibility.contract.stored_message import Origin, StoredMessage
from visibility.rows.row_changes import Changes
from visibility.rows.row_codec import encode_row
from visibility.rows.row_keys import ARCHIVED, row_key
from visibility.rows.row_values import THE_SHARD, ArchivedMessage, SealedBatch
from visibility.state import queue_state
from visibility.tests.prepared import queue_named

Q = queue_named("q", 1)
BATCH = SealedBatch(7, 3, 6, 0, 1_700_000_000_000)


def stored(body: str, **members: Any) -> StoredMessage:
    operation = SendMessage(queue_url="", message_body=body, **members)
    (content,) = contents_of(operation, Q, "sender", "Root=1-5759e988-bd862e3fe1be46a994272793")
    assert isinstance(content, Content)
    return StoredMessage(f"id of {body}", 1_700_000_000_123, content.size, content.data)


def archived(message: StoredMessage) -> ArchivedMessage:
    return ArchivedMessage(Q.arn, "expired", 1_700_000_060_000, 0, 2, 1_700_000_001_000, message)


ATTRIBUTES: Mapping[str, MessageAttributeValue] = {
    "b": MessageAttributeValue(data_type="Binary.x", binary_value=b"\x00\xff"),
    "a": MessageAttributeValue(data_type="Number", string_value="7"),
}
MESSAGES = (
    stored("one"),
    stored("zwölf", message_attributes=dict(ATTRIBUTES)),
    StoredMessage("secret", 1_700_000_000_123, 6, b"ciphertext", 9),
)


@pytest.fixture
def rows() -> MemoryStore:
    """Three messages of the batch, between those of others."""
    store = MemoryStore()
    changes = Changes()
    for position, message in enumerate((stored("before"), *MESSAGES, stored("behind")), 2):
        changes.put(row_key(THE_SHARD, ARCHIVED, position), encode_row(archived(message)))
    store.apply(changes)
    return store


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(str(tmp_path))


def opened(message: StoredMessage) -> bytes | None:
    return None if message.sealed else message.data


def write(lake: Lake, rows: MemoryStore) -> Written:
    return write_segment(lake, rows, "source", 0, BATCH, opened)


def read(lake: Lake, path: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = parquet.ParquetFile(lake.path(path)).read().to_pylist()
    return found


def test_a_segment_has_the_messages_of_its_batch_and_no_others(
    lake: Lake, rows: MemoryStore
) -> None:
    written = write(lake, rows)

    assert (written.messages, written.missing, written.damaged) == (3, 0, [])
    one, two, three = read(lake, written.path)
    assert [row["position"] for row in (one, two, three)] == [3, 4, 5]
    assert (one["body"], one["attributes"], one["sender_id"]) == ("one", None, "sender")
    assert one["md5_of_body"] == "f97c5d29941bfb1b2fdab0874906ab82"
    assert one["aws_trace_header"] == "Root=1-5759e988-bd862e3fe1be46a994272793"
    assert two["body"] == "zwölf"
    assert dict(two["attributes"]) == {
        "b": {"data_type": "Binary.x", "string_value": None, "binary_value": b"\x00\xff"},
        "a": {"data_type": "Number", "string_value": "7", "binary_value": None},
    }
    assert (three["body"], three["sealed"], three["data_key"]) == (None, b"ciphertext", 9)
    assert one["sent_at"].isoformat() == "2023-11-14T22:13:20.123000+00:00"
    assert one["removed_at"].isoformat() == "2023-11-14T22:14:20+00:00"


def test_its_footer_and_its_rows_say_what_they_must_be(lake: Lake, rows: MemoryStore) -> None:
    written = write(lake, rows)
    found = read(lake, written.path)

    said = json.loads(parquet.read_metadata(lake.path(written.path)).metadata[FOOTER_KEY])

    assert said == {
        "format": 1,
        "source": "source",
        "shard": 0,
        "batch": 7,
        "count": 3,
        "bytes": sum(message.size for message in MESSAGES),
        "checksum": sum(row["checksum"] for row in found) % CHECKSUM_MODULUS,
    }
    for row in found:
        content = row["sealed"] if row["body"] is None else row["body"].encode()
        checksum = row_checksum(row["message_id"], content, attribute_bytes(row["attributes"]))
        assert row["checksum"] == checksum


def test_a_batch_that_is_there_is_found_and_one_that_is_not_is_the_same_again(
    lake: Lake, rows: MemoryStore
) -> None:
    written = write(lake, rows)
    before = Path(lake.path(written.path)).read_bytes()

    other = msgspec.structs.replace(BATCH, number=8)
    assert not_written(lake, "source", 0, [BATCH, other]) == [other]
    lake.remove(written.path)
    assert not_written(lake, "source", 0, [BATCH]) == [BATCH]
    assert write(lake, rows) == written
    assert Path(lake.path(written.path)).read_bytes() == before


def test_a_large_batch_is_written_in_parts(
    lake: Lake, rows: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lake_segments, "ROW_GROUP_ROWS", 2)

    written = write(lake, rows)

    assert parquet.read_metadata(lake.path(written.path)).num_row_groups == 2
    assert [row["position"] for row in read(lake, written.path)] == [3, 4, 5]


def test_a_damaged_message_is_named_and_the_others_are_archived(
    lake: Lake, rows: MemoryStore
) -> None:
    key = row_key(THE_SHARD, ARCHIVED, 4)
    changes = Changes()
    changes.put(key, b"\x01rubbish")
    rows.apply(changes)

    written = write(lake, rows)

    assert [error.key for error in written.damaged] == [key]
    assert written.missing == 1
    assert [row["position"] for row in read(lake, written.path)] == [3, 5]


def test_messages_that_are_not_there_are_counted(lake: Lake, rows: MemoryStore) -> None:
    changes = Changes()
    changes.delete_range(row_key(THE_SHARD, ARCHIVED, 3), row_key(THE_SHARD, ARCHIVED, 5))
    rows.apply(changes)

    written = write(lake, rows)

    assert (written.messages, written.missing, written.damaged) == (1, 2, [])


@pytest.mark.parametrize("duration_ms", [0, 1, 2, 3, 999, 60_000, 86_400_000, 1_209_600_000])
def test_shard_and_jobs_mean_the_same_by_a_bucket(duration_ms: int) -> None:
    assert queue_state.bucket_of(duration_ms) == bucket_of(duration_ms)


def test_a_dead_letter_tells_how_it_died_and_others_do_not(lake: Lake) -> None:
    letter = msgspec.structs.replace(
        stored("letter"),
        dead_letter_source_arn="arn:aws:sqs:us-east-1:1:source",
        death=Death("expired", 1_700_000_030_000, 3),
    )
    redriven = msgspec.structs.replace(letter, dead_letter_source_arn=None)
    store, changes = MemoryStore(), Changes()
    for position, message in enumerate((letter, redriven, stored("plain")), BATCH.first):
        changes.put(row_key(THE_SHARD, ARCHIVED, position), encode_row(archived(message)))
    store.apply(changes)

    first, *others = read(lake, write(lake, store).path)

    assert (first["dead_letter_cause"], first["dead_letter_hops"]) == ("expired", 3)
    assert first["dead_letter_at"].isoformat() == "2023-11-14T22:13:50+00:00"
    assert [row["dead_letter_cause"] for row in others] == [None, None]


def test_a_redriven_message_tells_its_origin_and_others_do_not(lake: Lake) -> None:
    origin = Origin("first", 1_700_000_000_000, 4, redrives=2)
    redriven = msgspec.structs.replace(stored("redriven"), origin=origin)
    store, changes = MemoryStore(), Changes()
    for position, message in enumerate((redriven, stored("plain")), BATCH.first):
        changes.put(row_key(THE_SHARD, ARCHIVED, position), encode_row(archived(message)))
    store.apply(changes)

    first, plain = read(lake, write(lake, store).path)

    assert (first["origin_message_id"], first["origin_receive_count"]) == ("first", 4)
    assert first["origin_sent_at"].isoformat() == "2023-11-14T22:13:20+00:00"
    assert (plain["origin_message_id"], plain["origin_sent_at"]) == (None, None)
