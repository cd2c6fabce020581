"""Answers of shards to accepted requests, with the notes of failures that some of them have."""

from __future__ import annotations

import msgspec

from visibility.contract import results
from visibility.contract.errors import FAULTS_OF_THE_SERVICE, QueueError, without_frames
from visibility.contract.model import QueueCounters
from visibility.contract.move_task import MoveTask
from visibility.contract.stored_message import Arrival, Hold, Lease, StoredMessage


class Browsed(msgspec.Struct, frozen=True):
    """A message in a browser's page, not received. `lease` is None if it was never received
    here."""

    sequence: int
    state: str
    """"visible", "in flight", "delayed", or of one that an operator holds "held" or "deleting"."""
    message: StoredMessage
    lease: Lease | None
    due_ms: int
    """End of its delay or lease, or the instant at which it is deleted; 0 if there is none."""
    hold: Hold | None = None
    waits_behind: int | None = None
    """Sequence of the first message of its group that is in flight or held, if it is visible and no
    receive gets it before that one is settled. A version before has None."""


class BrowsedPage(msgspec.Struct, frozen=True):
    """Messages in stable order; `next_token` continues after them, None at the end. `looked_at`
    counts them together with those that a filter left out; a version before has 0."""

    messages: list[Browsed]
    next_token: tuple[int, int] | None
    end: int = 0
    """The last sequence that the queue gave to a message, of pages of those that are not
    delayed."""
    looked_at: int = 0


class FailureNote(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The failures of the messages of one span of sequences, as `sqs_api/failures` counted them; a
    row.

    Invariant: it is there only while the span's messages are those of `sequences`, a bit for each
    sequence, the first one lowest. `version` is that of the way in which failures are found, and of
    `data`, whose content is sealed under the data key `sealed`.
    """

    span: int
    version: int
    sequences: bytes
    sealed: int
    data: bytes


class FailureNotesPage(msgspec.Struct, frozen=True):
    """Notes by span; `next_span` is where the rest begins, None at the end."""

    notes: list[FailureNote]
    next_span: int | None


class SpansNoted(msgspec.Struct, frozen=True):
    """The spans whose notes were kept. Those that had changed since they were opened are not."""

    spans: list[int]


class Planned(msgspec.Struct, frozen=True):
    """Messages that a move task would put into one queue; `size` in bytes, as AWS counts."""

    messages: int
    size: int
    too_large: int = 0
    """Those above the queue's MaximumMessageSize; they move all the same."""


class MovePlan(msgspec.Struct, frozen=True):
    """The effect of a move task, or of the step of it that was looked at."""

    targets: dict[str, Planned]
    """By destination ARN."""
    refused: dict[str, int]
    """Messages that would stay, by the code of the reason."""
    next_sequence: int | None = None
    """Start of the next step, None after the last."""
    passed: int = 0
    """Messages that do not match the filter."""
    expiring: int = 0
    """Messages whose retention ends before their turn comes."""
    overtaking: int = 0
    """FIFO: messages that leave earlier ones of their group behind."""
    groups: list[bytes] = []
    """FIFO: groups with messages that stay, of this step and those before it; see
    `move_plans.PlanMove`."""
    samples: list[int] = []
    """Sequences of the first messages that an edit would change."""


class MoveTasks(msgspec.Struct, frozen=True):
    """Move tasks of one queue, newest first."""

    tasks: list[MoveTask]


class SelectedDeleted(msgspec.Struct, frozen=True):
    """Number of deleted messages, and of those that are in flight, delayed or gone."""

    deleted: int
    kept: int


class SelectedChanged(msgspec.Struct, frozen=True):
    """Number of messages that were held or released, and of the others."""

    changed: int
    kept: int


class QueueReading(msgspec.Struct, frozen=True):
    """A queue that holds or held messages, as operators see it.

    The instants are those of `visibility.state.ages`, 0 if there is no such message or rows cannot
    be read; the numbers from `sent` on count since the shard was loaded.
    """

    queue_id: int
    visible: int
    in_flight: int
    delayed: int
    quarantined: int
    oldest_stored_ms: int
    oldest_receivable_ms: int
    sent: int
    received: int
    deleted: int
    expired: int
    moved_in: int
    moved_out: int
    task: results.ListMessageMoveTasksResultEntry | None = None
    """The latest move task."""
    paused: str = ""
    """The reason for which that one waits."""
    held: int = 0
    """Messages that operators hold; they count as in flight, too."""


class QueuesRead(msgspec.Struct, frozen=True):
    """Readings of those queues that hold or held messages."""

    queues: list[QueueReading]


class Deliveries(msgspec.Struct, frozen=True):
    """The messages taken by a ReceiveMessage and their leases, in order. `is_limited`: there are
    none because of a limit of the queue's tags."""

    leases: list[Lease]
    messages: list[StoredMessage]
    is_limited: bool = False


class Progress(msgspec.Struct, frozen=True):
    """One step of restoring or dropping a queue."""

    is_done: bool
    next_sequence: int = 0
    """Start of the next step."""
    again_in_ms: int = 0
    """Pause before the next step."""
    left: int = 0
    """Messages that stay because they cannot be read."""
    blocked: frozenset[bytes] = frozenset()
    """FIFO groups with skipped messages: the next steps of this pass skip them."""


class PartReading(msgspec.Struct, frozen=True):
    """A part of a queue, as its shard knows it: the queue's versions in which it closed and was
    empty, 0 for neither, its next sequence, its counters, all messages that it has or that are on
    their way from it, damaged ones too, what keeps it from being removed, and the bytes of its
    messages, damaged ones left out."""

    closed_version: int
    drained_version: int
    next_sequence: int
    visible: int
    in_flight: int
    delayed: int
    messages: int
    waits_for: str
    size: int = 0


class MessagesFound(msgspec.Struct, frozen=True):
    """Number of messages in a part that could be received. `first` is the place of the first of
    them in a queue with strict priority, see `priority.place_of`; 0 for others."""

    visible: int
    first: int = 0


class GroupsHeld(msgspec.Struct, frozen=True):
    """The groups of a question of which a closed part still has messages."""

    groups: list[bytes]


class LockedGroups(msgspec.Struct, frozen=True):
    """A page of the locked groups of a part."""

    groups: list[bytes]


class IdsKnown(msgspec.Struct, frozen=True):
    """Deduplication ids of a question that a closed part knows, as (digest, MessageId, sequence).
    `are_over`: it knows none any more."""

    ids: list[tuple[bytes, str, int]]
    are_over: bool = False


class AttemptKnown(msgspec.Struct, frozen=True):
    """True if a part remembers a receive attempt."""

    is_known: bool


class OutboxPage(msgspec.Struct, frozen=True):
    """The next messages of an outbox for a shard; by origin, the number below which it holds none
    for that shard. `waits` if it holds some for a deleted queue that can be restored, or behind
    others that go elsewhere first."""

    arrivals: list[Arrival]
    floors: list[tuple[bytes, int]]
    waits: bool = False


class Accepted(msgspec.Struct, frozen=True):
    """Messages of an outbox that were answered for good, as (origin, number, reason): the reason
    is empty for a message that is here, or was. The others must come again."""

    outcomes: list[tuple[bytes, int, str]]


class Transacted(msgspec.Struct, frozen=True):
    """The outcome of a transaction: `sent` has the MessageId and the SequenceNumber of each entry,
    None for one without. `reasons` has (code, text) for each entry, empty for one that was not
    refused; with a reason nothing was done. `is_settled`: all that was sent is in its queue."""

    sent: list[tuple[str | None, str | None]]
    reasons: list[tuple[str, str]] = []
    is_settled: bool = True


class Prepared(msgspec.Struct, frozen=True):
    """Deletes of a transaction that were prepared: their name, (origin, number). With `reasons`, as
    in Transacted, nothing was."""

    origin: bytes
    number: int
    reasons: list[tuple[str, str]] = []


class Deduplicated(msgspec.Struct, frozen=True):
    """The answer to a send; `duplicates` of its messages were sent before and are not stored
    again."""

    result: results.SendMessageResult | results.SendMessageBatchResult
    duplicates: int


Answer = (
    results.Result
    | Deliveries
    | Deduplicated
    | QueueCounters
    | BrowsedPage
    | MovePlan
    | MoveTasks
    | SelectedDeleted
    | SelectedChanged
    | QueuesRead
    | Progress
    | PartReading
    | MessagesFound
    | GroupsHeld
    | LockedGroups
    | IdsKnown
    | AttemptKnown
    | OutboxPage
    | Accepted
    | Transacted
    | Prepared
    | FailureNotesPage
    | SpansNoted
    | None
)
"""The answer to an accepted request."""


def batch_failure(entry_id: str, error: QueueError) -> results.BatchResultErrorEntry:
    """The refusal of one entry of a batch. The error, which the request holds, loses its frames."""
    without_frames(error)
    return failure_of(entry_id, error.code, error.message)


def failure_of(entry_id: str, code: str, message: str | None) -> results.BatchResultErrorEntry:
    """The same, of an error's code and text."""
    is_senders = code not in FAULTS_OF_THE_SERVICE
    return results.BatchResultErrorEntry(entry_id, is_senders, code, message)
