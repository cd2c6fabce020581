"""SharedTasks: takes the orders of move tasks of queues with several parts to those parts.

The host that leads the home of such a task looks at it twice a second: it tells the home what the
other parts have done, and the parts what the home orders (`visibility/rules/shared_moves.py`). It
remembers nothing that matters: after a failover the next leader's looks go on.

A home on a shard that is lost gives no more orders. Whoever leads a part that has a share then
asks the parts that may have been the home, and ends the share if none of them knows its task.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Container, Coroutine
from functools import partial
from typing import Any

import msgspec
import structlog

from cluster.clock import Entropy
from cluster.parts.part_requests import parts_with_tasks
from cluster.shards.queue_watch import own_request
from cluster.shards.router import Router
from visibility.contract.errors import QueueError
from visibility.contract.model import Definitions, QueueDefinition, Request
from visibility.contract.move_task import MoveTask
from visibility.contract.operations import Operation
from visibility.contract.outcomes import MoveTasks
from visibility.rules.move_tasks import ReadMoveTasks
from visibility.rules.shared_moves import AdvanceMoveTask, WorkOnMoveTask

LOOK_S = 0.5
"""Interval of the looks."""
_ROUNDS_MAX = 4
"""Rounds of one look, while parts begin or end."""


Looking = Callable[[], Coroutine[Any, Any, None]]


class SharedTasks:
    """Those whose homes this host leads."""

    def __init__(
        self, router: Router, view: Definitions, entropy: Entropy, lost: Container[int]
    ) -> None:
        """`lost` are shards that will never answer again."""
        self._lost = lost
        self._router = router
        self._view = view
        self._entropy = entropy
        self._looking: dict[int, asyncio.Task[None]] = {}
        """The looks under way, by the id of the home, or of the part with a share."""
        self._is_stopping = False
        self._log = structlog.get_logger("parts")

    async def look(self) -> None:
        """Begin a look at each shared task of this host's homes, and at each share whose home may
        be lost."""
        for shard in self._router.shards.values():
            for queue_id, task in shard.sharing().items() if shard.ready else ():
                if self._is_stopping or queue_id in self._looking:
                    continue
                if task.shares:
                    self._begin(queue_id, partial(self._advance, queue_id))
                elif self._may_be_alone(queue_id):
                    self._begin(queue_id, partial(self._end_alone, queue_id, task))

    def _begin(self, queue_id: int, looking: Looking) -> None:
        task = asyncio.get_running_loop().create_task(self._run(queue_id, looking))
        self._looking[queue_id] = task
        task.add_done_callback(partial(self._ended, queue_id))

    def stop(self) -> None:
        """Look no more; tasks go on after the next start."""
        self._is_stopping = True
        for task in self._looking.values():
            task.cancel()

    def _ended(self, queue_id: int, task: asyncio.Task[None]) -> None:
        del self._looking[queue_id]

    async def _run(self, queue_id: int, looking: Looking) -> None:
        try:
            await looking()
        except QueueError as error:
            self._log.info("move_task_waits", queue_id=queue_id, reason=error.code)
        except Exception:  # a bug, which must not end the looks
            self._log.exception("move_task_not_advanced", queue_id=queue_id)

    async def _advance(self, queue_id: int) -> None:
        """Take orders to the parts until none of them begins or ends with it. Raises QueueError."""
        heard: list[MoveTask] = []
        gone: list[int] = []
        stages: list[tuple[int, ...]] = []
        for _ in range(_ROUNDS_MAX):
            home = self._view.queue_of_id(queue_id)
            if home is None:
                return
            answer = await self._router.ask_here(self._request(home, AdvanceMoveTask(heard, gone)))
            assert isinstance(answer, MoveTasks)
            there, gone = _parts_of(home, answer.tasks)
            answers = await asyncio.gather(*(self._ask(*each) for each in there))
            heard = [task for task in answers if task is not None]
            before, stages = stages, [_stage(task) for task in heard]
            if stages == before and not gone:
                return

    async def _ask(self, part: QueueDefinition, order: MoveTask) -> MoveTask | None:
        """The part's own task; None without an answer."""
        try:
            answer = await self._router.ask(self._request(part, WorkOnMoveTask(order)))
        except QueueError as error:
            number, reason = part.part_number, error.code
            self._log.info("part_not_asked", queue=part.name, part=number, reason=reason)
            return None
        assert isinstance(answer, MoveTasks)
        return answer.tasks[0] if answer.tasks else None

    def _may_be_alone(self, queue_id: int) -> bool:
        """True if a part of this part's queue was lost."""
        part = self._view.queue_of_id(queue_id)
        return part is not None and any(each.shard in self._lost for each in part.gone)

    async def _end_alone(self, queue_id: int, task: MoveTask) -> None:
        """End a share of a task that no part knows any more. Raises QueueError."""
        part = self._view.queue_of_id(queue_id)
        if part is None:
            return
        asked = (self._request(each, ReadMoveTasks()) for each in parts_with_tasks(part))
        for answer in await asyncio.gather(*map(self._router.ask, asked)):
            assert isinstance(answer, MoveTasks)
            if any(each.task_id == task.task_id and each.is_active for each in answer.tasks):
                return
        over = msgspec.structs.replace(task, status="CANCELLING", order=task.order + 1)
        await self._router.ask_here(self._request(part, WorkOnMoveTask(over)))
        self._log.warning("move_task_alone", queue=part.name, part=part.part_number)

    def _request(self, part: QueueDefinition, operation: Operation) -> Request:
        return own_request(operation, part, f"{self._entropy.bits128():032x}")


def _parts_of(
    home: QueueDefinition, orders: list[MoveTask]
) -> tuple[list[tuple[QueueDefinition, MoveTask]], list[int]]:
    """The parts with their orders, and the places of parts that are gone. One that the view may not
    show yet is left out."""
    parts = {part.part_number: part for part in home.all_parts()}
    there = [(parts[order.number], order) for order in orders if order.number in parts]
    gone = [
        order.place
        for order in orders
        if order.number not in parts and order.number <= home.last_part
    ]
    return there, gone


def _stage(task: MoveTask) -> tuple[int, ...]:
    """The progress of a part."""
    return task.place, task.until_sequence > 0, task.is_walked, task.is_active, task.order
