"""Options of a shard's files: what an acknowledgement survives, and when rows are flushed."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping
from enum import StrEnum
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from storage.histogram import Histogram
from storage.log import SEGMENT_BYTES

FLUSH_BYTES = 64 << 20
"""Live log at which a flush begins; at twice that size the shard waits for it."""
FLUSH_ROWS = 500_000
"""Row changes, likewise: a restart replays them at 0.8 us each."""


class Durability(StrEnum):
    """The failures that an acknowledgement survives."""

    FSYNC = "fsync"
    """An acknowledged request survives a power failure."""
    OS = "os"
    """An acknowledged request survives a crash of the process, not of the machine."""
    MEMORY = "memory"
    """An acknowledged request survives a clean stop only; for tests."""


class Replication(StrEnum):
    """The copies that an answer waits for, in a cluster."""

    SYNC = "sync"
    """All answers wait for a majority."""
    ASYNC = "async"
    """Those to sends, deletes and changes of visibility wait for the leader's own copy only."""


class StoreOptions(NamedTuple):
    """Options of a shard's files."""

    durability: Durability = Durability.FSYNC
    accepts_loss: bool = False
    """Open a folder that holds less than clients were answered."""
    segment_bytes: int = SEGMENT_BYTES
    flush_bytes: int = FLUSH_BYTES
    flush_rows: int = FLUSH_ROWS
    monotonic_s: Callable[[], float] = float
    """The clock that measures `sync_s`."""
    sync_s: Histogram | None = None
    in_thread: Callable[[Callable[[], object]], Awaitable[object]] = asyncio.to_thread
    """Runs work that may take seconds."""
    new_log_id: Callable[[], bytes] = partial(os.urandom, 16)
    """Makes 16 random bytes."""
    queue_names: Mapping[int, str] = MappingProxyType({})
    """Names of queues by id, for the log."""
    replication: Replication = Replication.SYNC
    """The replication of a log that other hosts have, too."""


def log_folder(shard_folder: Path) -> Path:
    """The folder of a shard's log: beside that of its rows."""
    return shard_folder.with_name(shard_folder.name + ".log")
