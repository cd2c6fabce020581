"""The queues of a simulation, under the names that its history uses."""

from __future__ import annotations

from collections.abc import Collection
from enum import StrEnum
from typing import Any

import msgspec

from cluster.tests.simulation.simulated_worker import Machine
from compat_tests.faults.fault_history import History, Queue
from visibility.contract.death import EXPIRED, HOPS_MAX, QUEUE_DELETED
from visibility.contract.model import QueueDefinition
from visibility.tests.prepared import KnownQueues, queue_named


class Extra(StrEnum):
    """Work that some seeds have beside the usual, and its queues. The value is the text from which
    it is drawn."""

    OPERATOR = "operators"  # somebody holds messages
    SHORT = "retention"  # messages expire, and receives are limited
    SOLE = "sole consumer"  # a consumer works alone
    PARTS = "parts"  # queues are split and shrunk
    SCHEDULES = "schedules"  # messages are scheduled for an instant
    BRIEF = "times to live"  # messages have a time to live
    ONCE = "at most once"  # queues deliver at most once
    TRANSACTIONS = "transactions"  # messages are consumed and produced at once
    RANKED = "priorities"  # messages have priorities
    FULL = "limits of length"  # queues hold few messages
    DEATHS = "causes of death"  # queues are deleted and restored, and some form a circle
    CLOCKS = "senders' clocks"  # messages are ordered by their senders' clocks


VISIBILITY_S = 5

PLAIN, FAIR, RESCUED = "plain", "fair", "rescued"
FAILING, LETTERS = "failing", "letters"
ORDER, FAILING_FIFO, LETTERS_FIFO = "order.fifo", "failing.fifo", "letters.fifo"
NAMES = (PLAIN, FAIR, RESCUED, FAILING, LETTERS, ORDER, FAILING_FIFO, LETTERS_FIFO)
SHORT, SHORT_FIFO = "short", "short.fifo"
SHORT_NAMES = (SHORT, SHORT_FIFO)
"""Queues whose messages expire and wait when a receive failed, with limits of receives, in runs
that have them."""
RETENTION_S = 60
RETRY_S = 2
IN_FLIGHT_MAX = 3
RECEIVE_RATE = 2
SOLE, SOLE_FIFO = "sole", "sole.fifo"
SOLE_NAMES = (SOLE, SOLE_FIFO)
"""Queues with one consumer, in runs that have them."""
BRIEF, BRIEF_FIFO = "brief", "brief.fifo"
BRIEF_NAMES = (BRIEF, BRIEF_FIFO)
"""Queues whose messages have a time to live, in runs that have them."""
ONCE, ONCE_FIFO = "once", "once.fifo"
ONCE_NAMES = (ONCE, ONCE_FIFO)
"""Queues that deliver at most once, in runs that have them."""
TTL_S = 12
FULL = "full"
FULL_MAX = 6
"""The queue that holds few messages, in runs that have it, and their number."""
BRIM, SPILL = "brim", "spill"
BRIM_MAX, SPILL_MAX = 12, 5
"""In the same runs, a queue whose oldest messages become dead letters, and their queue, which is
full soon; and their numbers of messages."""
SLOWED = "slowed"
SLOWED_DEPTH = 5
"""In the same runs, the queue that takes no more while so many messages wait."""
RANKED = "ranked"
"""The queue with strict priority, in runs that have it."""
DOOMED, DOOMED_FIFO, GRAVE, GRAVE_FIFO = "doomed", "doomed.fifo", "grave", "grave.fifo"
"""Queues that are deleted and restored, and their dead-letter queues, in runs that have them."""
CIRCLE = ("way-in", "round", "about")
"""Queues with a time to live, in the same runs: the last two are each other's dead-letter queues,
and the second is that of the first."""
CIRCLE_S = 2
BY_CLOCK, LATE = "by-clock", "late"
"""The queue in the order of its senders' clocks, and its late queue, in runs that have them."""
WINDOW_MS = 2_000
EXPIRING = (*SHORT_NAMES, *BRIEF_NAMES, *CIRCLE)
"""Queues whose messages are all too old in the end."""
TARGETS = (RESCUED, FAILING, LETTERS, FAILING_FIFO, LETTERS_FIFO)
"""Queues to which messages move."""
_SHARED_OUT: dict[str, Any] = {
    "DeduplicationScope": "messageGroup",
    "FifoThroughputLimit": "perMessageGroupId",
}
"""Attributes of a FIFO queue that can have several parts."""
_REACH = {
    FAILING: frozenset((LETTERS, RESCUED)),
    FAILING_FIFO: frozenset((LETTERS_FIFO,)),
}


def define_queues(machine: Machine, history: History, extras: Collection[Extra] = ()) -> None:
    """Make all queues; those of extras only with them."""
    visibility = str(VISIBILITY_S)
    for name in NAMES:
        history.queues[name] = Queue(name, name, _REACH.get(name, frozenset()), name == ORDER)
    known = machine.queues
    for queue_id, name in enumerate(NAMES, 1):
        if name not in (FAILING, FAILING_FIFO):
            more: dict[str, Any] = _SHARED_OUT if name.endswith(".fifo") else {}
            _define(machine, queue_named(name, queue_id, VisibilityTimeout=visibility, **more))
    for queue_id, name in enumerate(SHORT_NAMES if Extra.SHORT in extras else (), len(NAMES) + 1):
        history.queues[name] = Queue(
            name,
            name,
            is_ordered=name == SHORT_FIFO,
            retention_s=RETENTION_S,
            retry_s=RETRY_S,
            in_flight_max=IN_FLIGHT_MAX,
            receive_rate=RECEIVE_RATE,
        )
        short = queue_named(
            name,
            queue_id,
            tags={
                "holdfast:retry-min": str(RETRY_S),
                "holdfast:retry-max": "5",
                "holdfast:max-in-flight": str(IN_FLIGHT_MAX),
                "holdfast:receive-rate": str(RECEIVE_RATE),
            },
            VisibilityTimeout=visibility,
            MessageRetentionPeriod=str(RETENTION_S),
        )
        _define(machine, short)
    for queue_id, name in enumerate(
        SOLE_NAMES if Extra.SOLE in extras else (), len(NAMES + SHORT_NAMES) + 1
    ):
        history.queues[name] = Queue(name, name, is_ordered=name == SOLE_FIFO)
        _define(machine, queue_named(name, queue_id, VisibilityTimeout=visibility))
    first_brief = len(NAMES + SHORT_NAMES + SOLE_NAMES) + 1
    for queue_id, name in enumerate(BRIEF_NAMES if Extra.BRIEF in extras else (), first_brief):
        history.queues[name] = Queue(name, name, is_ordered=name == BRIEF_FIFO, retention_s=TTL_S)
        tags = {"holdfast:ttl": str(TTL_S)}
        more = _SHARED_OUT if name == BRIEF_FIFO else {}
        brief = queue_named(name, queue_id, tags=tags, VisibilityTimeout=visibility, **more)
        _define(machine, brief)
    full_id = first_brief + len(BRIEF_NAMES) + 1
    if Extra.RANKED in extras:
        history.queues[RANKED] = Queue(RANKED, RANKED, is_strict=True)
        tags = {"holdfast:priority": "strict"}
        ranked_id = first_brief + len(BRIEF_NAMES)
        _define(machine, queue_named(RANKED, ranked_id, tags=tags, VisibilityTimeout=visibility))
    if Extra.FULL in extras:
        history.queues[FULL] = Queue(FULL, FULL, messages_max=FULL_MAX)
        tags = {"holdfast:max-messages": str(FULL_MAX)}
        _define(machine, queue_named(FULL, full_id, tags=tags, VisibilityTimeout=visibility))
        _define_crowded(machine, history, full_id + len(ONCE_NAMES) + 10)
    for queue_id, name in enumerate(ONCE_NAMES if Extra.ONCE in extras else (), full_id + 1):
        is_ordered = name == ONCE_FIFO
        history.queues[name] = Queue(name, name, is_ordered=is_ordered, is_at_most_once=True)
        tags = {"holdfast:delivery": "at-most-once"}
        more = _SHARED_OUT if is_ordered else {}
        once = queue_named(name, queue_id, tags=tags, VisibilityTimeout=visibility, **more)
        _define(machine, once)
    if Extra.DEATHS in extras:
        _define_deaths(machine, history, full_id + len(ONCE_NAMES) + 1)
    if Extra.CLOCKS in extras:
        _define_by_clock(machine, history, full_id + len(ONCE_NAMES) + 8)
    for name, letters in ((FAILING, LETTERS), (FAILING_FIFO, LETTERS_FIFO)):
        _define(
            machine,
            queue_named(
                name,
                NAMES.index(name) + 1,
                dead_letters_to=named(known, letters),
                max_receive_count=2,
                VisibilityTimeout=visibility,
                **(_SHARED_OUT if name == FAILING_FIFO else {}),
            ),
        )


def _define_crowded(machine: Machine, history: History, first_id: int) -> None:
    visibility = str(VISIBILITY_S)
    history.queues[SPILL] = Queue(SPILL, SPILL, messages_max=SPILL_MAX)
    history.queues[BRIM] = Queue(BRIM, BRIM, frozenset((SPILL,)), messages_max=BRIM_MAX)
    history.queues[SLOWED] = Queue(SLOWED, SLOWED, throttle_depth=SLOWED_DEPTH)
    tags = {"holdfast:max-messages": str(SPILL_MAX)}
    spill = queue_named(SPILL, first_id, tags=tags, VisibilityTimeout=visibility)
    tags = {"holdfast:max-messages": str(BRIM_MAX), "holdfast:overflow": "dead-letter"}
    brim = queue_named(
        BRIM,
        first_id + 1,
        tags=tags,
        dead_letters_to=spill,
        max_receive_count=1_000,
        VisibilityTimeout=visibility,
    )
    tags = {"holdfast:throttle-depth": str(SLOWED_DEPTH)}
    slowed = queue_named(SLOWED, first_id + 2, tags=tags, VisibilityTimeout=visibility)
    for queue in (spill, brim, slowed):
        _define(machine, queue)


def _define_deaths(machine: Machine, history: History, first_id: int) -> None:
    visibility = str(VISIBILITY_S)
    for queue_id, (name, grave) in enumerate(
        ((DOOMED, GRAVE), (DOOMED_FIFO, GRAVE_FIFO)), first_id
    ):
        history.queues[grave] = Queue(grave, grave, cause=QUEUE_DELETED)
        history.queues[name] = Queue(name, name, frozenset((grave,)))
        dead = queue_named(grave, queue_id + 2, VisibilityTimeout=visibility)
        _define(machine, dead)
        _define(
            machine,
            queue_named(
                name,
                queue_id,
                tags={"holdfast:on-delete": "dead-letter"},
                dead_letters_to=dead,
                max_receive_count=1_000,
                VisibilityTimeout=visibility,
            ),
        )
    way_in, around, about = places = [
        queue_named(name, queue_id) for queue_id, name in enumerate(CIRCLE, first_id + 4)
    ]
    for place, target in zip(places, (around, about, around), strict=True):
        name = place.name
        is_way_in = place is way_in
        history.queues[name] = Queue(
            name,
            name,
            frozenset(CIRCLE[1:]) if is_way_in else frozenset(),
            retention_s=CIRCLE_S if is_way_in else float("inf"),
            cause="" if is_way_in else EXPIRED,
            deaths_max=HOPS_MAX,
        )
        _define(
            machine,
            queue_named(
                name,
                place.queue_id,
                tags={"holdfast:ttl": str(CIRCLE_S), "holdfast:expired": "dead-letter"},
                dead_letters_to=target,
                max_receive_count=1_000,
                VisibilityTimeout=visibility,
            ),
        )


def _define_by_clock(machine: Machine, history: History, queue_id: int) -> None:
    late = queue_named(LATE, queue_id + 1, VisibilityTimeout=str(VISIBILITY_S))
    tags = {
        "holdfast:order": "sender-clock",
        "holdfast:order-window": str(WINDOW_MS),
        "holdfast:late-queue": late.arn,
    }
    by_clock = queue_named(BY_CLOCK, queue_id, tags=tags, VisibilityTimeout=str(VISIBILITY_S))
    history.queues[BY_CLOCK] = Queue(BY_CLOCK, BY_CLOCK, frozenset((LATE,)), is_by_clock=True)
    history.queues[LATE] = Queue(LATE, LATE)
    for queue in (by_clock, late):
        _define(machine, queue)


def _define(machine: Machine, queue: QueueDefinition) -> None:
    """Make a queue in the next shard: dead letters and moves go to another one, if there are
    several."""
    shard = queue.queue_id % len(machine.shards)
    machine.queues.define(msgspec.structs.replace(queue, shard=shard))


def named(known: KnownQueues, name: str) -> QueueDefinition:
    """The queue's present definition."""
    return next(each for each in known.queues.values() if each.name == name and each.is_home)


def stop_dead_letters(known: KnownQueues) -> None:
    """Let no message become a dead letter any more; one that is out of date is discarded."""
    has_circle = any(each.name == CIRCLE[0] for each in known.queues.values())
    for name in (FAILING, FAILING_FIFO, *(CIRCLE if has_circle else ())):
        plain = queue_named(name, 0, VisibilityTimeout=str(VISIBILITY_S))
        for part in named(known, name).all_parts():
            known.define(
                msgspec.structs.replace(part, settings=plain.settings, attributes=plain.attributes)
            )
