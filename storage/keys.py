"""TABLE: the layout of every key. Format version 1.

    0            8       9                17
    +------------+-------+----------------+
    | queue_id   | table | sequence       |     numbers are big-endian, so keys sort by queue, table, sequence
    +------------+-------+----------------+

    table  row                                                     value (storage/codec.py)
    0x01   the queue's own row; no sequence                        QueueRow
    0x10   a message, from send to delete                          StoredMessage
    0x20   the lease of a message that is in flight, delayed,      Lease
           or visible again; absent while it simply waits

Every key begins with the queue, so one range delete forgets a queue, and a queue's own row comes before the rows that
churn, so finding all queues never walks over deleted messages. Tables between these numbers are free.
"""

from __future__ import annotations

from struct import Struct

FORMAT_VERSION = 1

QUEUE = b"\x01"
MESSAGE = b"\x10"
LEASE = b"\x20"

_QUEUE_ID = Struct(">Q")
row_key = Struct(">QcQ").pack
"""The key of (queue_id, table, sequence)."""


def queue_key(queue_id: int) -> bytes:
    """The queue's own row."""
    return _QUEUE_ID.pack(queue_id) + QUEUE


def message_key(queue_id: int, sequence: int) -> bytes:
    """A message."""
    return row_key(queue_id, MESSAGE, sequence)


def lease_key(queue_id: int, sequence: int) -> bytes:
    """A message's lease."""
    return row_key(queue_id, LEASE, sequence)


def table_range(queue_id: int, table: bytes) -> tuple[bytes, bytes]:
    """First key and first key behind one table of a queue."""
    prefix = _QUEUE_ID.pack(queue_id)
    return prefix + table, prefix + bytes([table[0] + 1])


def queue_range(queue_id: int) -> tuple[bytes, bytes]:
    """First key and first key behind everything of a queue."""
    return _QUEUE_ID.pack(queue_id), _QUEUE_ID.pack(queue_id + 1)


def queue_of(key: bytes) -> int:
    """The queue a key belongs to."""
    queue_id: int = _QUEUE_ID.unpack_from(key)[0]
    return queue_id


def sequence_of(key: bytes) -> int:
    """The sequence of a message's or a lease's key."""
    sequence: int = _QUEUE_ID.unpack_from(key, 9)[0]
    return sequence
