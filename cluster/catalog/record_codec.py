"""The values of the catalog's records, as JSON.

Receipt keys are encrypted: reading the records is not enough to make receipt handles.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from auth.envelope import SealBroken
from cluster.catalog.catalog_records import DELETED, QUEUES, Entry, KeptQueue, KeptState
from cluster.coordination.coordination import Record
from cluster.keys.keyring import Secrets
from visibility.contract.attributes import settings_of
from visibility.contract.model import QueueDefinition

_RECEIPT_KEY = "receipt key"


class CatalogUnreadable(Exception):
    """A record cannot be read; the text says why in one line."""


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


def stored_entry(key: str, value: bytes) -> StoredQueue | StoredTombstone | int:
    """A record as it is stored; needs no keyring. Raises CatalogUnreadable."""
    kind: type[StoredQueue | StoredTombstone | int] = int
    if key.startswith(QUEUES):
        kind = StoredQueue
    elif key.startswith(DELETED):
        kind = StoredTombstone
    try:
        return msgspec.json.decode(value, type=kind)
    except (ValueError, TypeError) as error:
        raise _unreadable(key, error) from error


def stored_queues(records: Iterable[Record]) -> Iterator[StoredQueue]:
    """The queues that can be used or restored, as they are stored. Raises CatalogUnreadable."""
    for record in records:
        entry = stored_entry(record.key, record.value)
        if not isinstance(entry, int):
            yield entry if isinstance(entry, StoredQueue) else entry.queue


def definition_of(stored: StoredQueue, receipt_key: bytes) -> QueueDefinition:
    """The queue that is stored, with its receipt key in the clear, or empty where none is used."""
    named = {name: getattr(stored, name) for name in StoredQueue.__struct_fields__}
    named["receipt_key"] = receipt_key
    return QueueDefinition(**named, settings=settings_of(stored.attributes, stored.tags))


def _unreadable(key: str, error: Exception) -> CatalogUnreadable:
    return CatalogUnreadable(f"{key} cannot be read: {' '.join(str(error).split())}")


class RecordCodec:
    """Entries to values and back."""

    def __init__(self, secrets: Secrets) -> None:
        self._secrets = secrets

    def encode(self, entry: Entry) -> bytes:
        """The value of a record."""
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
        """The content of a record. Raises CatalogUnreadable."""
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
        receipt_key = self._secrets.decrypt(stored.receipt_key, _RECEIPT_KEY)
        return definition_of(stored, receipt_key)
