"""Short answers: what a leader remembers of requests that changed something, for their retries.

Only a shard of a cluster remembers: there a request may be tried again although it was decided.
Parts of an answer that follow from the request itself, such as digests, are left out.
"""

from __future__ import annotations

from typing import Protocol

import msgspec

ANSWERS_KEPT_MS = 600_000
"""Time for which answers are remembered; an older retry is refused."""
EARLIER_MS = 30_000
"""The first try of a retry is looked for from this long before the retry's instant on.

20 s: the clocks of two leaders may each be 10 s off. 10 s: the age of a retry was measured when it
was sent.
"""


class ShortSends(msgspec.Struct, frozen=True, array_like=True, tag=1, gc=False):
    """The accepted messages of a send in order: id, and sequence number in FIFO queues."""

    messages: list[tuple[str, str | None]]
    duplicates: int = 0


class ShortReceive(msgspec.Struct, frozen=True, array_like=True, tag=2, gc=False):
    """The deliveries of a receive in order: sequence, and receive count of its lease."""

    queue_id: int
    deliveries: list[tuple[int, int]]


class ShortFailures(msgspec.Struct, frozen=True, array_like=True, tag=3, gc=False):
    """The entries of a batch that the decision refused: id, code, message."""

    failed: list[tuple[str, str, str | None]]


ShortAnswer = None | str | int | ShortSends | ShortReceive | ShortFailures
"""A single text is the id of a sent message or the handle of a move task, a number is that of a
cancelled one."""


class AnswersRow(msgspec.Struct, frozen=True, array_like=True):
    """The requests that an Entry's changes belong to, and the answer to each."""

    request_ids: list[str]
    answers: list[ShortAnswer]


class AnswerMemory(Protocol):
    """The remembered answers of a shard, as facts of its Entries."""

    repeated: dict[str, None]
    """The latest receives whose answer this leader has repeated or undone, oldest first: what is
    returned under their ids may have reached a client since. Volatile."""

    def record(self, now_ms: int, request_ids: list[str], answers: list[ShortAnswer]) -> None:
        """Record a Turn's answers, and forget those that are too old."""

    def find(self, request_ids: set[str], from_ms: int) -> dict[str, ShortAnswer]:
        """The latest answer to each of these requests, if it was recorded at `from_ms` or later.

        O(Entries since then). Raises DamagedRecord.
        """
