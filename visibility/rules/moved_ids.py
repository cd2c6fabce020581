"""Ids of moved messages: they begin as the id of their task does, and number their source.

    task     1b9d6bcd-bbfd-4b2d-9b5d-ab8dfbbd4bed
    message  1b9d6bcd-bbfd-4002-8c1e-5a0f0c6e7d21      of the third source in `MoveTask.sources`

So a message tells which redrive it belongs to, without a field or a row of its own: the task finds
those that come back, and an undo those that were not received, with their sources.
"""

from __future__ import annotations

from visibility.contract.move_task import MoveTask
from visibility.state.stamp import Stamp

SOURCES_MAX = 100
"""Sources that a task's row names."""
_PREFIX = 13
_SOURCE = slice(15, 18)
_RANDOM = 18
_UNKNOWN = 0xFFF


def moved_id(task: MoveTask, source_arn: str | None, stamp: Stamp) -> str:
    """A new id for a message that came from this source as a dead letter."""
    sources = task.sources
    number = sources.index(source_arn) if source_arn in sources else _UNKNOWN
    return f"{prefix_of(task.task_id)}-4{number:03x}{stamp.message_id()[_RANDOM:]}"


def prefix_of(task_id: str) -> str:
    """The beginning of the ids of all messages that a task moved."""
    return task_id[:_PREFIX]


def source_of(message_id: str, sources: list[str]) -> str | None:
    """The source of a moved message; None if it is not known."""
    number = int(message_id[_SOURCE], 16)
    return sources[number] if number < len(sources) else None
