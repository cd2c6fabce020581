"""What a decision returns: the answer, or why there is none yet, and the events that make it true."""

from __future__ import annotations

from enum import Enum

import msgspec

from visibility import results
from visibility.errors import QueueError
from visibility.events import Event, Lease, StoredMessage
from visibility.model import QueueCounters


class NoAnswer(Enum):
    """Why a decision has no answer yet."""

    PARK = "park"  # a long poll on an empty queue: answer when a message becomes visible or the time is up
    DEFER = (
        "defer"  # the next messages are on disk only: decide again after the next page was loaded
    )


class Deliveries(msgspec.Struct, frozen=True):
    """What a ReceiveMessage takes: the lease of each message, and the message where it was in memory.

    The shard reads the missing ones from the store before it releases the answer.
    """

    leases: list[Lease]
    messages: list[StoredMessage | None]
    missing: int = 0
    """How many messages are None."""


Answer = results.Result | Deliveries | QueueCounters | None
"""What a request is answered with if it is not refused."""

Outcome = tuple[Answer | NoAnswer, tuple[Event, ...]]
"""An answer (or why there is none yet) and the events to apply, in order."""


def batch_failure(entry_id: str, error: QueueError) -> results.BatchResultErrorEntry:
    """The refusal of one entry of a batch."""
    return results.BatchResultErrorEntry(entry_id, True, error.code, error.message)
