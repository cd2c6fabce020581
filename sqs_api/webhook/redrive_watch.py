"""RedriveWatch: announces redrives that wait for someone, stopped by themselves, or failed.

    {"type": "redrive.waits" | "redrive.stopped" | "redrive.failed", ..., "data": {..., "id",
     "started_by", "reason", "undoes", "moved", "to_move", "came_back", "stayed", "failure"}}

A redrive `waits` once its canary has moved, and `stopped` when as many messages came back as
its limit says. One that someone paused or cancelled is not announced: who did that knows.

Announcements are remembered in memory only: after a restart, or on a new leader of the queue's
shard, a redrive that waits or stopped is announced once more, and so is one that failed in the last
minute. Only the leader of the shard announces it. One that goes on and stops again between two
looks is announced once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from typing_extensions import override

from cluster.shards.router import Router
from sqs_api.webhook.announcer import Announcer, Watch
from visibility.contract.model import QueueDefinition
from visibility.contract.move_task import CAME_BACK, CANARY, MoveTask

_KEPT_MS = 60_000
"""A failed redrive that was not seen before is announced for so long."""
_WAITS = "redrive.waits"
_STOPPED = "redrive.stopped"
_FAILED = "redrive.failed"
_PAUSED = {CANARY: _WAITS, CAME_BACK: _STOPPED}


class RedriveWatch(Watch):
    """Watches the redrives of this host."""

    def __init__(self, router: Router, announcer: Announcer, wall_s: Callable[[], float]) -> None:
        self._router = router
        self._announcer = announcer
        self._wall_s = wall_s
        self._seen: dict[str, str | None] = {}
        """The announcement of each redrive as it was at the last look, by its id."""
        self._now: dict[str, str | None] = {}
        """The same of the look that goes on."""
        self._since_ms = 0

    @override
    def begin(self) -> None:
        self._now, self._since_ms = {}, int(self._wall_s() * 1000) - _KEPT_MS

    @override
    def see(self, queues: Sequence[QueueDefinition]) -> None:
        """Announce redrives that have come to wait, stopped or failed since the last look."""
        tasks = self._router.tasks_since(queues, self._since_ms)
        for queue in queues if tasks else ():
            for task in tasks.get(queue.queue_id, ()):
                kind = self._now[task.task_id] = _kind(task)
                if kind is not None and kind != self._seen.get(task.task_id):
                    self._announce(kind, queue, task)

    @override
    async def end(self) -> None:
        self._seen = self._now

    def _announce(self, kind: str, queue: QueueDefinition, task: MoveTask) -> None:
        place = self._announcer.place(queue, "/redrive")
        text = _text(kind, queue, task)
        self._announcer.announce(
            kind,
            queue,
            text if place is None else f"{text} {place}",
            {
                "id": task.task_id,
                "started_by": task.started_by,
                "reason": task.note,
                "undoes": task.undoes or None,
                "moved": task.moved,
                "to_move": _to_move(task),
                "came_back": task.came_back,
                "stayed": task.stayed,
                "failure": task.failure_reason if kind == _FAILED else None,
            },
        )


def _kind(task: MoveTask) -> str | None:
    """The announcement of a task as it is now."""
    if task.is_active:
        return _PAUSED.get(task.paused)
    return _FAILED if task.status == "FAILED" else None


def _to_move(task: MoveTask) -> int:
    return max(task.moved, task.to_move)


def _text(kind: str, queue: QueueDefinition, task: MoveTask) -> str:
    what = f"{queue.name}: {'the undo of a redrive' if task.undoes else 'a redrive'}"
    moved = f"{task.moved:,} of {_to_move(task):,} messages moved"
    back = f", {task.came_back:,} came back" if task.came_back else ""
    if kind == _WAITS:
        return f"{what} waits for someone to look at it: {moved}{back}."
    if kind == _STOPPED:
        return f"{what} stopped by itself, since messages came back: {moved}{back}."
    stayed = f", {task.stayed:,} could not be moved" if task.stayed else ""
    reason = f" ({task.failure_reason.rstrip('.')})" if task.failure_reason else ""
    return f"{what} failed: {moved}{back}{stayed}{reason}."
