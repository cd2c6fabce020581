"""Queues as operators see them: settings, counters, ages, and the redrive that runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypedDict, cast

from sqs_api.operators.operator_context import OperatorContext
from visibility.contract.model import QueueDefinition, RedrivePolicy
from visibility.contract.outcomes import QueueReading
from visibility.contract.results import ListMessageMoveTasksResultEntry

_SOURCES_SHOWN = 20
EMPTY = QueueReading(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
"""The reading of a queue that never held a message."""


class Counts(TypedDict):
    """Counters of a queue; all are null while no host leads its shard. Those from `sent` on count
    since the shard was loaded."""

    visible: int | None
    in_flight: int | None
    delayed: int | None
    quarantined: int | None
    held: int | None
    sent: int | None
    received: int | None
    deleted: int | None
    expired: int | None
    moved_in: int | None
    moved_out: int | None


class ShownTask(TypedDict):
    """A redrive that runs or ended last."""

    handle: str | None
    status: str | None
    paused: str | None
    source_arn: str | None
    destination_arn: str | None
    rate: int | None
    moved: int | None
    to_move: int | None
    failure: str | None
    started_at_ms: int | None


class ShownPolicy(TypedDict):
    """The redrive policy of a queue."""

    arn: str
    name: str
    max_receive_count: int


class ShownQueue(Counts):
    """A queue. Its message that expires first is lost in `expires_in_s`."""

    name: str
    arn: str
    account: str
    region: str
    fifo: bool
    oldest_age_s: float | None
    oldest_receivable_age_s: float | None
    expires_in_s: float | None
    retention_s: int
    dead_letter_queue: ShownPolicy | None
    sources: list[str]
    sources_total: int
    task: ShownTask | None


def shown_queue(
    context: OperatorContext,
    queue: QueueDefinition,
    reading: QueueReading | None,
    sources: Mapping[str, list[str]],
) -> ShownQueue:
    """A queue as JSON; its numbers are null while no host leads its shard."""
    policy, of_it = queue.settings.redrive_policy, sources.get(queue.arn, [])
    retention_s = queue.settings.retention_ms // 1000
    age_s = None if reading is None else _age_s(context, reading.oldest_stored_ms)
    receivable_s = None if reading is None else _age_s(context, reading.oldest_receivable_ms)
    return {
        "name": queue.name,
        "arn": queue.arn,
        "account": queue.account,
        "region": queue.region,
        "fifo": queue.settings.fifo,
        **_counts(reading),
        "oldest_age_s": age_s,
        "oldest_receivable_age_s": receivable_s,
        "expires_in_s": None if age_s is None else max(0.0, retention_s - age_s),
        "retention_s": retention_s,
        "dead_letter_queue": None if policy is None else _shown_policy(policy),
        "sources": of_it[:_SOURCES_SHOWN],
        "sources_total": len(of_it),
        "task": _shown_task(reading.task, reading.paused) if reading and reading.task else None,
    }


def _age_s(context: OperatorContext, since_ms: int) -> float | None:
    return max(0, context.now_ms - since_ms) / 1000 if since_ms else None


def _shown_task(task: ListMessageMoveTasksResultEntry, paused: str) -> ShownTask:
    """A redrive as JSON."""
    return {
        "handle": task.task_handle,
        "status": task.status,
        "paused": paused or None,
        "source_arn": task.source_arn,
        "destination_arn": task.destination_arn,
        "rate": task.max_number_of_messages_per_second,
        "moved": task.approximate_number_of_messages_moved,
        "to_move": task.approximate_number_of_messages_to_move,
        "failure": task.failure_reason,
        "started_at_ms": task.started_timestamp,
    }


def _counts(reading: QueueReading | None) -> Counts:
    names = Counts.__annotations__
    return cast(Counts, {name: reading and getattr(reading, name) for name in names})


def _shown_policy(policy: RedrivePolicy) -> ShownPolicy:
    return {
        "arn": policy.dead_letter_target_arn,
        "name": policy.dead_letter_target_arn.rpartition(":")[2],
        "max_receive_count": policy.max_receive_count,
    }
