"""TABLE: the layout of every key. Format version 4.

    0            8       9
    +------------+-------+-----------------------------+
    | queue_id   | table | rest                        |
    +------------+-------+-----------------------------+

Numbers are big-endian, 8 bytes, so keys sort by their value. A span is `sequence >> SPAN_BITS`; the
values are in `visibility/rows/row_codec.py`.

    table  rest                row                                               value
    0x01   -                   the queue's own row                               QueueRow
    0x10   sequence            a message that waits or was received              StoredMessage
    0x12   clock_ms, sequence  a message that is out of order of age             empty
    0x13   expires_ms, sequence  a message with a time to live                   empty
    0x14   due_ms, sequence    a delayed message; due_ms is 0 in FIFO queues     StoredMessage
    0x15   level, sequence     a waiting message with a priority                 empty
    0x18   group               a group's numbers; group is a digest of 16 bytes  GroupRow
    0x19   group, sequence     a waiting message of the group                    empty or a Lease
    0x1a   order               a group that may give messages                    the group's digest
    0x20   sequence            the lease of a message that is in flight,         Lease
                               or (standard queues) visible again
    0x22   original_sequence   the message that receipt handles call this        sequence
    0x24   sequence            the mark of a message that an operator holds  Hold
    0x30   bucket_ms, digest   the meaning of a deduplication or attempt id      Remembered
    0x40   number              a message move task                               MoveTask
    0x50   span                the number of rows of 0x10 in the span            count
    0x54   span                the quarantined messages of the span              Quarantined
    0x55   group               a group that a quarantined message blocks         time in ms
    0x56   group               a group that waits for an earlier part            0
    0x58   span                the failures of the span's messages               FailureNote
    0x60   position            a message that waits for the archive              ArchivedMessage
    0x61   number              a batch of them that was sealed                   SealedBatch
    0x62   0                   the shard's archive state                         ArchiveRow
    0x63   0                   the last Entry applied to the rows                AppliedRow
    0x64   stamp_ms, number    the answers to an Entry's requests, for retries   AnswersRow
    0x66   number              a message in the outbox                           Departure
    0x67   0                   the outbox's state                                OutboxRow
    0x68   origin, number      a message of another shard's outbox               reason or ""
    0x69   origin              the number below which those are answered         number
    0x70   queue_id            a part of a queue that closed                     PartRow
    0x71   name                all parts of a queue that had several              NotedParts
    0x72   bucket_ms, token    a transaction and its answer                      TransactionRow

The last twelve have the queue id 0: they belong to the shard and do not depend on its queues.

Every key begins with the queue, so one range delete removes a queue. A queue's own row precedes the
rows that churn, so finding all queues never walks over deleted messages. Numbers between these
tables are free.
"""

from __future__ import annotations

from struct import Struct

FORMAT_VERSION = 4
SPAN_BITS = 12
"""Messages are counted by spans of 4,096 sequences, so that the first one is found without a
scan."""

QUEUE = b"\x01"
MESSAGE = b"\x10"
CLOCK = b"\x12"
EXPIRY = b"\x13"
DELAYED = b"\x14"
LEVEL_LINE = b"\x15"
GROUP = b"\x18"
GROUP_LINE = b"\x19"
HEAD = b"\x1a"
LEASE = b"\x20"
ALIAS = b"\x22"
HOLD = b"\x24"
REMEMBERED = b"\x30"
MOVE_TASK = b"\x40"
SPAN = b"\x50"
QUARANTINED = b"\x54"
BLOCKED = b"\x55"
LOCKED = b"\x56"
FAILURE_NOTE = b"\x58"
ARCHIVED = b"\x60"
BATCH = b"\x61"
ARCHIVE = b"\x62"
APPLIED = b"\x63"
ANSWERS = b"\x64"
DEPARTURE = b"\x66"
OUTBOX = b"\x67"
ARRIVAL = b"\x68"
ARRIVALS_FLOOR = b"\x69"
PART = b"\x70"
NOTED_PARTS = b"\x71"
TRANSACTION = b"\x72"

_NUMBER = Struct(">Q")
_PAIR = Struct(">QQ")
row_key = Struct(">QcQ").pack
"""The key of (queue_id, table, number)."""
pair_key = Struct(">QcQQ").pack
"""The key of (queue_id, table, number, number)."""
group_key = Struct(">Qc16s").pack
"""The key of (queue_id, table, group)."""
group_line_key = Struct(">Qc16sQ").pack
"""The key of (queue_id, table, group, sequence)."""
remembered_key = Struct(">QcQ16s").pack
"""The key of (queue_id, table, bucket_ms, digest)."""
transaction_key = remembered_key
"""The key of (0, table, bucket_ms, token)."""
arrival_key = group_line_key
"""The key of (0, table, origin, number)."""
floor_key = group_key
"""The key of (0, table, origin)."""


PAIRS_END = b"\xff" * 16
"""Greater than the rest of any key of a delayed message, after its table."""
APPLIED_KEY = row_key(0, APPLIED, 0)
"""The row that names the last applied Entry."""


def queue_key(queue_id: int) -> bytes:
    """The key of the queue's own row."""
    return _NUMBER.pack(queue_id) + QUEUE


def message_key(queue_id: int, sequence: int) -> bytes:
    """The key of a message."""
    return row_key(queue_id, MESSAGE, sequence)


def table_range(queue_id: int, table: bytes) -> tuple[bytes, bytes]:
    """First key of a queue's table, and the first key after it."""
    prefix = _NUMBER.pack(queue_id)
    return prefix + table, prefix + bytes([table[0] + 1])


END_OF_QUEUES = b"\xff" * 8
"""Behind every key of a queue."""


def queue_range(queue_id: int) -> tuple[bytes, bytes]:
    """First key of a queue, and the first key after it."""
    return _NUMBER.pack(queue_id), _NUMBER.pack(queue_id + 1)


def queue_of(key: bytes) -> int:
    """The queue a key belongs to."""
    queue_id: int = _NUMBER.unpack_from(key)[0]
    return queue_id


def number_of(key: bytes) -> int:
    """The number that follows the table."""
    number: int = _NUMBER.unpack_from(key, 9)[0]
    return number


def pair_of(key: bytes) -> tuple[int, int]:
    """The two numbers that follow the table."""
    first, second = _PAIR.unpack_from(key, 9)
    return first, second


def last_number_of(key: bytes) -> int:
    """The number at the end."""
    number: int = _NUMBER.unpack_from(key, len(key) - 8)[0]
    return number


def group_name(key: bytes) -> tuple[int, bytes] | None:
    """(queue_id, group) in the key of a group's row or of one in its line; None for another key."""
    is_group = (key[8:9], len(key)) in ((GROUP, 25), (GROUP_LINE, 33))
    return (queue_of(key), key[9:25]) if is_group else None


def is_between(key: bytes, stretches: list[tuple[bytes, bytes]]) -> bool:
    """True if the rest of the key, after its table, is in one of these stretches (first, end)."""
    return any(first <= key[9:] < end for first, end in stretches)


def message_name(key: bytes) -> tuple[int, int] | None:
    """(queue_id, sequence) in the key of a message, also of a delayed one; None for another key."""
    is_message = (key[8:9], len(key)) in ((MESSAGE, 17), (DELAYED, 25))
    return (queue_of(key), last_number_of(key)) if is_message else None
