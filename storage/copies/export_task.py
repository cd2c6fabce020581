"""What a service has the process do that writes to the lake, and what that did. Needs none of the lake's packages."""

from __future__ import annotations

from typing import Any

import msgspec

from auth.envelope import BUILT_IN_KEY


class QueuePlace(msgspec.Struct, array_like=True, frozen=True):
    """Which queue an id is."""

    account: str
    region: str
    name: str
    fifo: bool


class ShardExport(msgspec.Struct):
    """What is wanted of one shard."""

    number: int
    folder: str
    source: str
    flows: list[dict[str, Any]] = []
    """Columns as in `archive_schema.FLOW`, with instants in milliseconds."""


class Export(msgspec.Struct):
    """What is wanted. `snapshot_at_ms` is 0 for no snapshot; messages under `readable_keys` are archived readable."""

    lake: str
    shards: list[ShardExport]
    readable_keys: list[str]
    snapshot_at_ms: int = 0
    until_ms: int = 0
    queues: dict[int, QueuePlace] = {}
    queue_ages_max: int = 0
    account: str = ""
    """The account whose keys `readable_keys` names."""


class ExportTask(msgspec.Struct):
    """All that the process is told: what is wanted, and where the data folder and its keys are."""

    export: Export
    data: str
    master_key: str | None
    master_key_file: str | None


class ShardExported(msgspec.Struct):
    """What lies in the lake now of one shard."""

    number: int
    batch: int
    """All sealed batches up to this one are in the lake, 0 if there are none."""
    segments: int
    """How many of them were written now."""
    messages: int
    missing: int
    """Messages of those batches that could not be read; `damaged` says why."""
    damaged: list[str]
    snapshot_rows: int


class Exported(msgspec.Struct):
    """What was done."""

    shards: list[ShardExported]
    queue_ages: list[dict[str, Any]] = []
    """What the queue-age job found last, of so many queues as are wanted: those with the oldest messages."""


def readable_keys(bodies_are_readable: bool, keys: str) -> list[str]:
    """The keys whose messages are archived readable: the built-in one, and those named, separated by commas."""
    named = [key.strip() for key in keys.split(",") if key.strip()]
    return [BUILT_IN_KEY, *named] if bodies_are_readable else named
