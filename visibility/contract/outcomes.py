"""What a decision returns: the answer, or why there is none yet, and the events that make it true."""

from __future__ import annotations

from enum import Enum

import msgspec

from visibility.contract import results
from visibility.contract.errors import QueueError
from visibility.contract.model import QueueCounters
from visibility.state.events import Event, Lease, StoredMessage


class NoAnswer(Enum):
    """Why a decision has no answer yet."""

    PARK = "park"  # a long poll on an empty queue: answer when a message becomes visible or the time is up
    DEFER = "defer"  # there is more to do than one decision should: decide again in the next turn


class Browsed(msgspec.Struct, frozen=True):
    """A message as a browser sees it, without receiving it. `lease` is None for one that was not received here."""

    sequence: int
    state: str
    """"visible", "in flight" or "delayed"."""
    message: StoredMessage
    lease: Lease | None
    due_ms: int
    """When its delay or lease ends, 0 for a visible one."""


class BrowsedPage(msgspec.Struct, frozen=True):
    """Messages in stable order; `next_token` is where to go on, None at the end."""

    messages: list[Browsed]
    next_token: tuple[int, int] | None


class MovePlan(msgspec.Struct, frozen=True):
    """What a move task would do: messages by the ARN they would go to, and how many have nowhere to go."""

    messages_by_arn: dict[str, int]
    unmovable: int


class Deliveries(msgspec.Struct, frozen=True):
    """What a ReceiveMessage takes: messages and their leases, in order."""

    leases: list[Lease]
    messages: list[StoredMessage]


class Progress(msgspec.Struct, frozen=True):
    """One step of restoring or dropping a queue."""

    is_done: bool
    next_sequence: int = 0
    """Where the next step begins."""
    again_in_ms: int = 0
    """How long to wait before the next step."""
    left: int = 0
    """Messages that cannot be read, and stay."""
    blocked: frozenset[bytes] = frozenset()
    """FIFO groups that the next steps of this pass leave alone: earlier messages of them were passed by."""


class Deduplicated(msgspec.Struct, frozen=True):
    """The answer to a send of which `duplicates` messages had been sent before and are not stored again."""

    result: results.SendMessageResult | results.SendMessageBatchResult
    duplicates: int


Answer = (
    results.Result
    | Deliveries
    | Deduplicated
    | QueueCounters
    | BrowsedPage
    | MovePlan
    | Progress
    | None
)
"""What a request is answered with if it is not refused."""

Outcome = tuple[Answer | NoAnswer, tuple[Event, ...]]
"""An answer (or why there is none yet) and the events to apply, in order."""


def batch_failure(entry_id: str, error: QueueError) -> results.BatchResultErrorEntry:
    """The refusal of one entry of a batch."""
    return results.BatchResultErrorEntry(entry_id, True, error.code, error.message)
