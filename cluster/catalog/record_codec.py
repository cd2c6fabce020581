"""The values of the catalog's records, as JSON.

Receipt keys are encrypted: reading the records is not enough to make receipt handles. The record of
a queue with parts has no shard of its own, so that a version that knows no parts refuses it instead
of serving one part as the queue. So has that of a queue whose only part is not its first: it is
stored as one part.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import msgspec

from auth.envelope import SealBroken
from cluster.catalog.catalog_records import DELETED, PREFIX, QUEUES, Entry, KeptQueue, KeptState
from cluster.coordination.coordination import Record
from cluster.keys.keyring import Secrets
from visibility.contract.attributes import settings_of
from visibility.contract.model import QueueDefinition
from visibility.contract.queue_parts import NUMBERS_SKIPPED, GonePart, Part

_RECEIPT_KEY = "receipt key"


class CatalogUnreadable(Exception):
    """A record cannot be read; the text says why in one line."""


class StoredQueue(msgspec.Struct, frozen=True, omit_defaults=True):
    """A queue's value, or that of one part in a tombstone. `shard` is None where there are
    parts."""

    queue_id: int
    account: str
    region: str
    name: str
    version: int
    shard: int | None
    created_at_ms: int
    modified_at_ms: int
    receipt_key: bytes
    attributes: dict[str, str]
    tags: dict[str, str]
    deduplication_scope: str
    parts: tuple[Part, ...] = ()
    last_part: int = 0
    gone: tuple[GonePart, ...] = ()
    skipped_part: int = 0

    @property
    def is_fifo(self) -> bool:
        """True for a FIFO queue."""
        return self.attributes.get("FifoQueue") == "true"

    def places(self) -> dict[int, int]:
        """The shards of all its parts, by queue id. Raises CatalogUnreadable for none."""
        if self.parts:
            return {part.queue_id: part.shard for part in self.parts}
        if self.shard is None:
            raise CatalogUnreadable(f"queue {self.queue_id} has neither a shard nor parts")
        return {self.queue_id: self.shard}


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


def stored_queues(records: Iterable[Record]) -> Iterator[tuple[StoredQueue, int, int]]:
    """The queues that can be used or restored, as they are stored, each part with its queue id and
    shard. Raises CatalogUnreadable."""
    for record in records:
        entry = stored_entry(record.key, record.value)
        if isinstance(entry, StoredQueue):
            for queue_id, shard in entry.places().items():
                yield entry, queue_id, shard
        elif isinstance(entry, StoredTombstone):
            queue = entry.queue
            yield queue, queue.queue_id, queue.places()[queue.queue_id]


class KnownQueue(NamedTuple):
    """A queue or part as the catalog has it."""

    shard: int
    name: str
    fifo: bool


def shown(known: Mapping[int, KnownQueue], queue_id: int) -> str:
    """A queue in a finding."""
    queue = known.get(queue_id)
    return f"queue {queue_id} ({queue.name})" if queue else f"queue {queue_id}"


def skip_part_numbers(key: str, value: bytes) -> bytes:
    """The value of a restored record: numbers that the queue's parts may have got after the backup
    are not given to others. Raises CatalogUnreadable."""
    if not key.startswith((PREFIX + QUEUES, PREFIX + DELETED)):
        return value
    entry = stored_entry(key.removeprefix(PREFIX), value)
    if isinstance(entry, StoredTombstone):
        return msgspec.json.encode(msgspec.structs.replace(entry, queue=_skipped(entry.queue)))
    assert isinstance(entry, StoredQueue)
    return msgspec.json.encode(_skipped(entry))


def _skipped(queue: StoredQueue) -> StoredQueue:
    return msgspec.structs.replace(queue, last_part=queue.last_part + NUMBERS_SKIPPED)


def definition_of(stored: StoredQueue, receipt_key: bytes) -> QueueDefinition:
    """The queue that is stored, with its receipt key in the clear, or empty where none is used."""
    named = {name: getattr(stored, name) for name in StoredQueue.__struct_fields__}
    named["receipt_key"] = receipt_key
    named["shard"] = stored.places()[stored.queue_id]
    if len(stored.parts) == 1:
        named |= {"parts": (), "number": stored.parts[0].number}
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
        if queue.number and not queue.parts:
            named["parts"] = (Part(queue.number, queue.queue_id, queue.shard),)
        if named["parts"]:
            named["shard"] = None
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
