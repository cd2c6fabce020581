"""History of a run: each operation with its time and its outcome, if known.

Names stand for messages: a retried send keeps its name, and so does a message that moves. Times are
of the machine's monotonic clock. An operation happened at some moment between `begun` and `ended`;
one whose outcome is UNKNOWN happened then, later, or never.
"""

from __future__ import annotations

import enum
import hashlib
import json
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any


class Outcome(enum.Enum):
    """Result of a call."""

    DONE = "done"
    REFUSED = "refused"
    UNKNOWN = "unknown"
    """The connection was lost, or the service reported an error of its own."""


@dataclass(frozen=True, slots=True)
class Queue:
    """A queue of the traffic."""

    name: str
    url: str
    reach: frozenset[str] = frozenset()
    """Other queues to which its messages may move."""

    is_ordered: bool = False
    """FIFO without dead letters: each group is received in the order of its places."""

    retention_s: float = float("inf")
    """Infinite if no message of the run can be older."""

    retry_s: float = 0.0
    """For this long at least a message waits that was received and not deleted."""

    in_flight_max: int = 0
    """Messages that consumers may have at a time, 0 if nothing limits them."""

    receive_rate: int = 0
    """Messages a second that consumers get, and at once after a pause; 0 if nothing limits them."""

    messages_max: int = 0
    """Messages that the queue holds at most, 0 if nothing limits it."""

    throttle_depth: int = 0
    """Waiting messages from which on sends are refused, 0 if they never are."""

    is_strict: bool = False
    """Messages of a higher priority are received before all others."""

    is_at_most_once: bool = False
    """A receive takes its messages for good."""

    cause: str = ""
    """Cause of death of the messages of other queues here, empty if there may be any."""

    deaths_max: int = 0
    """Times that a message sent here may die, 0 if nothing limits them."""
    is_by_clock: bool = False
    """Messages are received in the order of their senders' clocks; late ones move to another
    queue."""


@dataclass(frozen=True, slots=True)
class Send:
    """One attempt to send a message."""

    name: str
    queue: str
    content: str
    """Digest of body, attributes and group."""

    begun: float
    ended: float
    outcome: Outcome
    message_id: str = ""
    group: str = ""
    place: int = 0
    """Place in its group, from 1."""

    delay_s: float = 0.0
    request_id: str = ""
    """Of the answer, where the client tells."""

    priority: int = 0
    clock_ms: int = 0
    """Time of the sender's clock, 0 if it told none, or one that was ahead."""

    is_in_time: bool = False
    """It arrived before its wait was over."""


@dataclass(frozen=True, slots=True, eq=False)
class Delivery:
    """One message of one answer."""

    name: str
    queue: str
    content: str
    message_id: str
    count: int
    """ApproximateReceiveCount."""

    begun: float
    ended: float
    hidden_s: float
    before: tuple[str, ...] = ()
    """Names that precede it in the same answer."""

    cause: str = ""
    died_ms: int = 0
    """Of its latest death, where the client tells."""
    first_id: str = ""
    """The id under which it was sent, where the client tells."""


@dataclass(frozen=True, slots=True)
class Change:
    """A change of a delivery's visibility timeout."""

    delivery: Delivery
    timeout_s: float
    begun: float
    ended: float
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class Delete:
    """A delete by a delivery's handle."""

    delivery: Delivery
    begun: float
    ended: float
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class Transaction:
    """A transaction: names of what it sent, and the deliveries that it consumed."""

    sent: tuple[str, ...]
    consumed: tuple[Delivery, ...]
    begun: float
    outcome: Outcome


@dataclass(slots=True)
class Hold:
    """An operator's hold on a message, from an answer until a release was asked for."""

    name: str
    queue: str
    message_id: str
    begun: float
    ended: float
    outcome: Outcome
    deleted_after_s: float = 0.0
    """It is deleted then; 0 if it waits until it is released."""

    released: float = float("inf")
    is_back: bool = False
    """True if the answer said so: it is not deleted any more."""


@dataclass(frozen=True, slots=True)
class Removal:
    """A purge, a deletion of the queue, or the restoration that undoes either."""

    queue: str
    begun: float
    ended: float
    outcome: Outcome


class Failure(enum.Enum):
    """The cause of a call that failed. The first three are as they must be; each of the next two is
    noted beside it."""

    OUTAGE = "on queues of a cluster that stood still"
    EXPECTED = "refused as expected"
    REPEATED = "refused after a repeat of the client's"
    REFUSED = "refused"
    FAULT = "5xx"
    CLOSED = "on a connection that was closed or refused"
    HUNG = "without an answer in time"


@dataclass(slots=True)
class Resize:
    """A time in which parts of a queue may have more than their shares of its limits: from a change
    of its parts until all have been seen with no more. Priorities are strict in each part only, so
    for them it has no end."""

    begun: float
    ended: float = float("inf")


@dataclass(slots=True)
class Outage:
    """A time in which calls on some queues may fail: all hosts with a shard of theirs are away."""

    queues: frozenset[str]
    begun: float
    ended: float = float("inf")


@dataclass(slots=True)
class Loss:
    """Shards that are lost for good and given up: what only they had is lost, and what they knew
    is forgotten."""

    held: frozenset[str]
    """Names of the messages that were there, and nowhere else."""
    coming: frozenset[str]
    """Those that were on their way there: what became of them there is not known."""
    begun: float
    ended: float = float("inf")
    """Queues have no part there any more."""


@dataclass
class History:
    """Everything that one run did and saw."""

    queues: dict[str, Queue] = field(default_factory=dict)
    sends: list[Send] = field(default_factory=list)
    deliveries: list[Delivery] = field(default_factory=list)
    changes: list[Change] = field(default_factory=list)
    deletes: list[Delete] = field(default_factory=list)
    removals: list[Removal] = field(default_factory=list)
    transactions: list[Transaction] = field(default_factory=list)
    outages: list[Outage] = field(default_factory=list)
    losses: list[Loss] = field(default_factory=list)
    restorations: list[Removal] = field(default_factory=list)
    holds: list[Hold] = field(default_factory=list)
    resizes: dict[str, list[Resize]] = field(default_factory=dict)
    """By queue, of those whose parts changed."""
    unknown_receives: Counter[str] = field(default_factory=Counter)
    """Receives with an unknown outcome, by queue."""

    repeated: set[str] = field(default_factory=set)
    """Names whose sends to a standard queue the client repeated by itself, see `repeats.py`."""

    tasks: int = 0
    callers: int = 0
    calls: int = 0
    failed: Counter[Failure] = field(default_factory=Counter)
    """Calls that failed, by what they met."""
    refusals: list[str] = field(default_factory=list)
    """Errors of the caller's (4xx) that the call had not expected."""

    faults: list[str] = field(default_factory=list)
    """Errors of the service's (5xx), which a client tries again."""

    latencies: list[float] = field(default_factory=list)
    """Seconds of each send since a sampler took them last."""

    set_back: list[tuple[float, float]] = field(default_factory=list)
    """Times at which the clock that decides was set back, and by how many seconds."""

    starts: list[float] = field(default_factory=list)
    """Times at which a new leader began, with an allowance of one message where a rate limits
    receives."""

    drain_begun: float = float("inf")
    """Time from which received messages were there at the end."""

    left: dict[str, tuple[int, int, int]] = field(default_factory=dict)
    """Counters of the queues after the drain that are not zero."""

    def fork(self) -> History:
        """A copy to which another drain can be added."""
        copied = replace(self, left={})
        for name in ("deliveries", "changes", "deletes", "refusals", "faults"):
            setattr(copied, name, list(getattr(self, name)))
        copied.unknown_receives = Counter(self.unknown_receives)
        return copied

    def is_resized(self, queue: str, at: float) -> bool:
        """True if what a change of its parts upsets may be so in the queue then."""
        return any(each.begun < at < each.ended for each in self.resizes.get(queue, ()))

    def may_fail(self, queue: str, begun: float) -> bool:
        """True if a call on the queue, which ends now, met an outage. A queue that lanes make and
        remove may be anywhere."""
        return any(
            begun < outage.ended and (queue in outage.queues or queue.startswith("passing-"))
            for outage in self.outages
        )

    def places(self) -> dict[str, set[str]]:
        """The queues that each message was in, by its name."""
        found: dict[str, set[str]] = {}
        seen: list[Send | Delivery] = [*self.sends, *self.deliveries]
        for each in seen:
            found.setdefault(each.name, set()).add(each.queue)
        return found

    def summary(self) -> str:
        """The amounts of everything."""
        sent = {send.name for send in self.sends if send.outcome is Outcome.DONE}
        deleted = sum(delete.outcome is Outcome.DONE for delete in self.deletes)
        drained = sum(delivery.begun >= self.drain_begun for delivery in self.deliveries)
        failed = ", ".join(
            f"{self.failed[each]} {each.value}" for each in Failure if self.failed[each]
        )
        return (
            f"{len(sent)} sends acknowledged, {len(self.deliveries)} deliveries, of which "
            f"{drained} at the end, "
            f"{deleted} deletes acknowledged, {len(self.removals)} purges and deletions, "
            f"{self.tasks} move tasks; "
            f"{self.calls} calls, of which {self.failed.total()} failed: {failed or 'none'}"
        )


def content_digest(body: str, attributes: dict[str, Any], group: str) -> str:
    """Digests of the parts that a consumer must get unchanged: of the body, and of the rest."""
    return f"{_digest(body)} {_digest(json.dumps([attributes, group], sort_keys=True))}"


def is_body(body: str, content: str) -> bool:
    """True if the body belongs to the content."""
    return content.startswith(_digest(body))


def _digest(text: str) -> str:
    return hashlib.md5(text.encode()).hexdigest()
