"""Catalogs of version 0.1, which had a table for each kind of record."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from typing import Any

import msgspec

from cluster.catalog.catalog_records import LAST_ID, deleted_key, freed_key, queue_key
from cluster.catalog.record_codec import StoredQueue, StoredTombstone

_COLUMNS = (
    "queue_id, account, region, name, version, shard, created_at_ms, modified_at_ms, receipt_key, "
    "attributes, tags, deduplication_scope"
)


def is_0_1(database: sqlite3.Connection) -> bool:
    """True for a catalog of version 0.1. Raises sqlite3.Error."""
    query = "SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name = 'queues'"
    return bool(database.execute(query).fetchone()[0])


def records_0_1(database: sqlite3.Connection) -> dict[str, bytes]:
    """The records that its tables contain. Raises sqlite3.Error."""
    found: dict[str, bytes] = {}
    for row in database.execute(f"SELECT {_COLUMNS} FROM queues"):
        queue = _queue(row)
        found[queue_key((queue.account, queue.region, queue.name))] = msgspec.json.encode(queue)
    there = {column for _, column, *_ in database.execute("PRAGMA table_info(deleted_queues)")}
    state, continued_as = (
        name if name in there else "0"  # the first catalogs have neither column
        for name in ("state", "continued_as")
    )
    tombstones = f"SELECT deleted_at_ms, {state}, {continued_as}, {_COLUMNS} FROM deleted_queues"
    for at_ms, state_now, successor_id, *row in database.execute(tombstones):
        queue = _queue(row)
        tombstone = StoredTombstone(queue, at_ms, state_now, successor_id)
        found[deleted_key(queue.queue_id)] = msgspec.json.encode(tombstone)
    for *name, at_ms in database.execute(
        "SELECT account, region, name, deleted_at_ms FROM deleted_names"
    ):
        found[freed_key((name[0], name[1], name[2]))] = msgspec.json.encode(at_ms)
    query = "SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'queues'"
    found[LAST_ID] = msgspec.json.encode(database.execute(query).fetchone()[0])
    return found


def _queue(row: Sequence[Any]) -> StoredQueue:
    *plain, receipt_key, attributes, tags, scope = row
    named = dict(zip(StoredQueue.__struct_fields__, plain, strict=False))
    try:
        # As strict as reading a record, so that no bad row becomes a bad record.
        return msgspec.convert(
            {
                **named,
                "receipt_key": receipt_key,
                "attributes": json.loads(attributes),
                "tags": json.loads(tags),
                "deduplication_scope": scope,
            },
            StoredQueue,
        )
    except (ValueError, TypeError) as error:
        text = " ".join(str(error).split())
        raise sqlite3.DataError(f"queue {named['name']!r} cannot be read: {text}") from error
