"""Task and result of the process that writes to the lake. Imports none of the lake's packages."""

from __future__ import annotations

from typing import Any

import msgspec

from auth.envelope import BUILT_IN_KEY


class QueuePlace(msgspec.Struct, array_like=True, frozen=True):
    """The queue that has an id."""

    account: str
    region: str
    name: str
    fifo: bool


class ShardExport(msgspec.Struct):
    """The task for one shard."""

    number: int
    folder: str
    source: str
    flows: list[dict[str, Any]] = []
    """Columns as in `archive_schema.FLOW`, with instants in milliseconds."""


class Export(msgspec.Struct):
    """The export to make. `snapshot_at_ms` is 0 for no snapshot; messages under `readable_keys` are
    archived readable."""

    lake: str
    shards: list[ShardExport]
    readable_keys: list[str]
    snapshot_at_ms: int = 0
    until_ms: int = 0
    queues: dict[int, QueuePlace] = {}
    queue_ages_max: int = 0
    account: str = ""
    """The account that owns the keys in `readable_keys`."""
    umask: int = 0o077
    """That of the lake's files and folders."""


class ExportTask(msgspec.Struct):
    """The whole task: the export, and the places of the data folder and its keys."""

    export: Export
    data: str
    master_key: str | None
    master_key_file: str | None
    member: dict[str, str] = {}
    """The settings of a member of a cluster, whose keys lie in etcd; empty on a single host."""


class ShardExported(msgspec.Struct):
    """One shard's batches in the lake."""

    number: int
    batch: int
    """All sealed batches up to this one are in the lake; 0 if there are none."""
    segments: int
    """Number of segments written now."""
    messages: int
    missing: int
    """Messages of those batches that could not be read; `damaged` gives the reasons."""
    damaged: list[str]


class Exported(msgspec.Struct):
    """The results."""

    shards: list[ShardExported]
    queue_ages: list[dict[str, Any]] = []
    """Latest result of the queue-age job, for the requested number of queues with the oldest
    messages."""


def readable_keys(bodies_are_readable: bool, keys: str) -> list[str]:
    """The keys whose messages are archived readable: the built-in one, and those in `keys`."""
    named = [key.strip() for key in keys.split(",") if key.strip()]
    return [BUILT_IN_KEY, *named] if bodies_are_readable else named
