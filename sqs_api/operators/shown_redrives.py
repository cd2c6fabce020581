"""Redrives as operators see them."""

from __future__ import annotations

from typing import Any, TypedDict

import msgspec

from sqs_api.operators.filter_fields import HIDDEN, ShownFilter, shown_filter
from visibility.contract.move_task import MoveTask, encode_handle


class Undone(TypedDict):
    """Messages that an undo has brought back."""

    moved: int
    is_running: bool


class ShownRedrive(TypedDict):
    """A redrive, begun here or by StartMessageMoveTask. `stayed` messages could not be moved; those
    of `looked_at` that do not match the filter are not among them. `to_move` is what a plan counted
    (`is_planned`), else the messages that were visible at the start. `edit` is a JSON merge patch
    of what moves. To those who may not read bodies it is `(hidden)`, as the texts are that the
    filter looks for."""

    number: int
    id: str
    handle: str
    status: str
    is_active: bool
    paused: str | None
    source_arn: str
    destination_arn: str | None
    filter: ShownFilter | None
    edit: dict[str, Any] | None
    rate: int | None
    ramp_s: int
    canary: int
    stop_after: int
    to_move: int | None
    is_planned: bool
    looked_at: int
    moved: int
    stayed: int
    came_back: int
    failure: str | None
    started_by: str
    reason: str
    started_at_ms: int
    ended_at_ms: int
    undoes: str | None
    undone_at_ms: int
    undone: Undone | None


def shown_redrive(task: MoveTask, undone: Undone | None, *, reads: bool) -> ShownRedrive:
    """A redrive as JSON, for somebody who may read the bodies of its queue (`reads`) or not."""
    edit = msgspec.json.decode(task.edit) if task.edit else None
    return {
        "number": task.number,
        "id": task.task_id,
        "handle": encode_handle(task),
        "status": task.status,
        "is_active": task.is_active,
        "paused": task.paused or None,
        "source_arn": task.source_arn,
        "destination_arn": task.destination_arn,
        "filter": None if task.filter is None else shown_filter(task.filter, reads=reads),
        "edit": edit if reads or edit is None else {HIDDEN: HIDDEN},
        "rate": task.rate or None,
        "ramp_s": task.pace.ramp_s,
        "canary": task.pace.canary,
        "stop_after": task.pace.stop_after,
        "to_move": task.to_move,
        "is_planned": task.is_planned,
        "looked_at": task.looked_at,
        "moved": task.moved,
        "stayed": task.stayed,
        "came_back": task.came_back,
        "failure": task.failure_reason,
        "started_by": task.started_by,
        "reason": task.note,
        "started_at_ms": task.started_at_ms,
        "ended_at_ms": task.ended_at_ms,
        "undoes": task.undoes or None,
        "undone_at_ms": task.undone_at_ms,
        "undone": undone,
    }
