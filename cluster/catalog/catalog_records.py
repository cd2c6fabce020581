"""The catalog's records: their keys and contents. `record_codec.py` writes the values as JSON.

queues/ACCOUNT/REGION/NAME   a queue; the key makes its name unique
deleted/ID                   a tombstone: a queue that was deleted or purged and may be restored
freed/ACCOUNT/REGION/NAME    the time at which a name was given up
ids/queue                    the last queue id that was issued; never decreases
removed/SHARD                when the cluster of a shard was removed: no queue comes to it
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

from visibility.contract.model import QueueDefinition

QueueName = tuple[str, str, str]
"""(account, region, name)."""

PREFIX = "catalog/"
"""Prefix of all these records among those of a cluster."""
QUEUES, DELETED, FREED = "queues/", "deleted/", "freed/"
LAST_ID = "ids/queue"
REMOVED = "removed/"


class KeptState(IntEnum):
    """State of a queue that was deleted or purged. Stored: never renumber."""

    KEPT = 0  # it can be restored
    RESTORING = 1  # it was purged, and its messages are moving back
    DROPPING = 2  # its messages, and then its record, may be forgotten


class KeptQueue(NamedTuple):
    """A queue at the time it was deleted or purged; of one with parts, each part for itself."""

    queue: QueueDefinition
    deleted_at_ms: int
    state: KeptState = KeptState.KEPT
    continued_as: int = 0
    """Id of the queue that continues it since a purge, 0 for a deleted one."""

    @property
    def is_needed(self) -> bool:
        """True while its messages can come back."""
        return self.state is not KeptState.DROPPING


Entry = QueueDefinition | KeptQueue | int
"""The value of a record: an int is a time in epoch milliseconds, or the last id."""
Entries = dict[str, Entry | None]
"""Records to write, None for those to remove."""


def queue_key(name: QueueName) -> str:
    """The key of a queue."""
    return QUEUES + "/".join(name)


def freed_key(name: QueueName) -> str:
    """The key of a name that was given up."""
    return FREED + "/".join(name)


def removed_key(shard: int) -> str:
    """The key of a shard whose cluster was removed."""
    return f"{REMOVED}{shard}"


def deleted_key(queue_id: int) -> str:
    """The key of a tombstone."""
    return f"{DELETED}{queue_id}"


def name_of(queue: QueueDefinition) -> QueueName:
    """The account, region and name of a queue."""
    return queue.account, queue.region, queue.name


def name_in(key: str) -> QueueName:
    """The name in a `queue_key` or a `freed_key`."""
    _, account, region, name = key.split("/", 3)
    return account, region, name
