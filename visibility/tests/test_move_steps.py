"""A move task whose end was lost with a damaged Entry of the log."""

from __future__ import annotations

import msgspec

from visibility.contract.move_task import MoveTask
from visibility.rules.move_steps import advance_move_tasks
from visibility.rules.move_tasks import MoveTaskChanged
from visibility.state.shard_state import ShardState
from visibility.state.stamp import Stamp
from visibility.tests import prepared

NOW_MS = 1_700_000_000_000
LOST = MoveTask(2, "lost", "arn:s", None, 0, NOW_MS, 1, 1)
LATER = msgspec.structs.replace(LOST, number=3, task_id="later", status="COMPLETED")


def test_a_task_with_a_successor_does_not_run_for_ever() -> None:
    state, definition = ShardState(), prepared.queue_named("s", 1)
    queue = state.queue(1)
    queue.tasks = {LOST.number: LOST, LATER.number: LATER}

    events, again_ms = advance_move_tasks(state, queue, definition, Stamp(NOW_MS, lambda: 0))

    (event,) = events
    assert isinstance(event, MoveTaskChanged)
    assert (event.task.task_id, event.task.status) == ("lost", "FAILED")
    assert event.task.failure_reason == "TaskEndLost"
    assert again_ms is None
