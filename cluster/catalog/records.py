"""The catalog's records: their keys, and their values as JSON.

    queues/ACCOUNT/REGION/NAME   a queue; the key makes its name unique
    deleted/ID                   a tombstone: a queue that was deleted or purged and may be restored
    freed/ACCOUNT/REGION/NAME    the time at which a name was given up
    ids/queue                    the last queue id that was issued; never goes back

Receipt keys are encrypted: reading the records is not enough to make receipt handles.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

import msgspec

from auth.envelope import SealBroken
from cluster.keys.keyring import Secrets
from visibility.contract.attributes import settings_of
from visibility.contract.model import QueueDefinition

QueueName = tuple[str, str, str]
"""(account, region, name)."""

QUEUES, DELETED, FREED = "queues/", "deleted/", "freed/"
LAST_ID = "ids/queue"
_RECEIPT_KEY = "receipt key"


class CatalogUnreadable(Exception):
    """A record cannot be read; the text says why in one line."""


class KeptState(IntEnum):
    """State of a queue that was deleted or purged. Stored: never renumber."""

    KEPT = 0  # it can be restored
    RESTORING = 1  # it was purged, and its messages are moving back
    DROPPING = 2  # its messages may be forgotten, and its record when that is done


class KeptQueue(NamedTuple):
    """A queue as it was when it was deleted or purged."""

    queue: QueueDefinition
    deleted_at_ms: int
    state: KeptState = KeptState.KEPT
    continued_as: int = 0
    """Id of the queue that continues it since a purge, 0 for a deleted one."""


Entry = QueueDefinition | KeptQueue | int
"""The value of a record: an int is a time in epoch milliseconds, or the last id."""
Entries = dict[str, Entry | None]
"""Records to write, None for those to remove."""


class StoredQueue(msgspec.Struct, frozen=True):
    """A queue's value."""

    queue_id: int
    account: str
    region: str
    name: str
    version: int
    shard: int
    created_at_ms: int
    modified_at_ms: int
    receipt_key: bytes
    attributes: dict[str, str]
    tags: dict[str, str]
    deduplication_scope: str


class StoredTombstone(msgspec.Struct, frozen=True):
    """A tombstone's value."""

    queue: StoredQueue
    deleted_at_ms: int
    state: int
    continued_as: int


def queue_key(name: QueueName) -> str:
    """The key of a queue."""
    return QUEUES + "/".join(name)


def freed_key(name: QueueName) -> str:
    """The key of a name that was given up."""
    return FREED + "/".join(name)


def deleted_key(queue_id: int) -> str:
    """The key of a tombstone."""
    return f"{DELETED}{queue_id}"


def name_of(queue: QueueDefinition) -> QueueName:
    """What a queue is found by."""
    return queue.account, queue.region, queue.name


def name_in(key: str) -> QueueName:
    """The name in a `queue_key` or a `freed_key`."""
    _, account, region, name = key.split("/", 3)
    return account, region, name


def stored_entry(key: str, value: bytes) -> StoredQueue | StoredTombstone | int:
    """A record as it is stored, for those who do not have the keyring. Raises CatalogUnreadable."""
    kind: type[StoredQueue | StoredTombstone | int] = int
    if key.startswith(QUEUES):
        kind = StoredQueue
    elif key.startswith(DELETED):
        kind = StoredTombstone
    try:
        return msgspec.json.decode(value, type=kind)
    except (ValueError, TypeError) as error:
        raise _unreadable(key, error) from error


def _unreadable(key: str, error: Exception) -> CatalogUnreadable:
    return CatalogUnreadable(f"{key} cannot be read: {' '.join(str(error).split())}")


class RecordCodec:
    """Entries to values and back."""

    def __init__(self, secrets: Secrets) -> None:
        self._secrets = secrets

    def encode(self, entry: Entry) -> bytes:
        """The value that says this."""
        if isinstance(entry, QueueDefinition):
            return msgspec.json.encode(self._stored(entry))
        if isinstance(entry, KeptQueue):
            return msgspec.json.encode(
                StoredTombstone(
                    self._stored(entry.queue), entry.deleted_at_ms, entry.state, entry.continued_as
                )
            )
        return msgspec.json.encode(entry)

    def _stored(self, queue: QueueDefinition) -> StoredQueue:
        named = {name: getattr(queue, name) for name in StoredQueue.__struct_fields__}
        named["receipt_key"] = self._secrets.encrypt(queue.receipt_key, _RECEIPT_KEY)
        return StoredQueue(**named)

    def decode(self, key: str, value: bytes) -> Entry:
        """What a record says. Raises CatalogUnreadable."""
        stored = stored_entry(key, value)
        try:
            if isinstance(stored, StoredQueue):
                return self._definition(stored)
            if isinstance(stored, StoredTombstone):
                queue, state = self._definition(stored.queue), KeptState(stored.state)
                return KeptQueue(queue, stored.deleted_at_ms, state, stored.continued_as)
        except (SealBroken, ValueError, TypeError, LookupError, AttributeError) as error:
            raise _unreadable(key, error) from error
        return stored

    def _definition(self, stored: StoredQueue) -> QueueDefinition:
        named = {name: getattr(stored, name) for name in StoredQueue.__struct_fields__}
        named["receipt_key"] = self._secrets.decrypt(stored.receipt_key, _RECEIPT_KEY)
        settings = settings_of(stored.attributes, stored.tags)
        return QueueDefinition(**named, settings=settings)
