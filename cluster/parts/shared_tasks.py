"""SharedTasks: takes the orders of move tasks of queues with several parts to those parts.

The host that leads the home of such a task looks at it twice a second: it tells the home what the
other parts have done, and the parts what the home orders (`visibility/rules/shared_moves.py`). It
remembers nothing that matters: after a failover the next leader's looks go on.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Protocol

import structlog

from auth.caller import Caller
from cluster.clock import Entropy
from cluster.shards.queue_watch import PRINCIPAL
from cluster.shards.router import Router
from visibility.contract.errors import QueueError
from visibility.contract.model import QueueDefinition, Request
from visibility.contract.move_task import MoveTask
from visibility.contract.operations import Operation
from visibility.contract.outcomes import MoveTasks
from visibility.rules.shared_moves import AdvanceMoveTask, WorkOnMoveTask

LOOK_S = 0.5
"""Interval of the looks."""
_ROUNDS_MAX = 4
"""Rounds of one look, while parts begin or end."""


class View(Protocol):
    """The queues as this host knows them."""

    def queue_of_id(self, queue_id: int) -> QueueDefinition | None:
        """The queue or part with this id, None if it was deleted."""


class SharedTasks:
    """Belongs to the event loop's thread."""

    def __init__(self, router: Router, view: View, entropy: Entropy) -> None:
        self._router = router
        self._view = view
        self._entropy = entropy
        self._looking: dict[int, asyncio.Task[None]] = {}
        """The looks under way, by the id of the home."""
        self._is_stopping = False
        self._log = structlog.get_logger("parts")

    async def look(self) -> None:
        """Begin a look at each shared task of this host's homes."""
        for shard in self._router.shards.values():
            for queue_id in shard.sharing() if shard.ready and not self._is_stopping else ():
                if queue_id not in self._looking:
                    task = asyncio.get_running_loop().create_task(self._run(queue_id))
                    self._looking[queue_id] = task
                    task.add_done_callback(partial(self._ended, queue_id))

    def stop(self) -> None:
        """Look no more; tasks go on after the next start."""
        self._is_stopping = True
        for task in self._looking.values():
            task.cancel()

    def _ended(self, queue_id: int, task: asyncio.Task[None]) -> None:
        del self._looking[queue_id]

    async def _run(self, queue_id: int) -> None:
        try:
            await self._advance(queue_id)
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

    def _request(self, part: QueueDefinition, operation: Operation) -> Request:
        caller = Caller(part.account, part.region, PRINCIPAL)
        return Request(operation, part, caller, f"{self._entropy.bits128():032x}")


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
