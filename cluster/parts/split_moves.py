"""SplitMoves: requests about the move tasks of queues, also of those with several parts.

The home has the tasks (`visibility/rules/shared_moves.py`). A home that drains keeps those that it
began until it is empty, and gives them to the present one then (`draining.py`). So tasks are looked
for at the home, and at the parts that drain.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial

from cluster.parts.asked_anew import asked_anew
from cluster.parts.part_requests import View, parts_with_tasks, to_part
from cluster.shards.router import Router
from visibility.contract.errors import ResourceNotFound
from visibility.contract.limits import MOVE_TASK_RESULTS
from visibility.contract.model import Request
from visibility.contract.operations import (
    CancelMessageMoveTask,
    ListMessageMoveTasks,
    StartMessageMoveTask,
)
from visibility.contract.outcomes import Answer, MoveTasks
from visibility.contract.results import ListMessageMoveTasksResult
from visibility.rules.move_tasks import ChangeMoveTask, MoveSelected, ReadMoveTasks, one_at_a_time

_STARTS = (StartMessageMoveTask, MoveSelected)
_NAMED = (CancelMessageMoveTask, ChangeMoveTask)
_LISTS = (ListMessageMoveTasks, ReadMoveTasks)
OF_TASKS = _STARTS + _NAMED + _LISTS
"""Operations about move tasks."""


class SplitMoves:
    """Takes each request to its home, or to the parts that have an answer."""

    def __init__(self, router: Router, view: View) -> None:
        self._router = router
        self._view = view

    async def ask(self, request: Request, age_ms: int = 0) -> Answer:
        """Have a request about move tasks decided; see `Router.ask`. It names the whole queue.
        Raises QueueError."""
        return await asked_anew(self._view, request, partial(self._ask, age_ms))

    async def _ask(self, age_ms: int, request: Request) -> Answer:
        operation = request.operation
        if isinstance(operation, _STARTS):
            return await self._start(request, age_ms)
        if not request.queue.parts:
            return await self._router.ask(request, age_ms)
        if isinstance(operation, _NAMED):
            return await self._ask_the_one(request, age_ms)
        answers = await asyncio.gather(
            *(
                self._router.ask(to_part(request, part), age_ms)
                for part in parts_with_tasks(request.queue)
            )
        )
        return _merged(request, answers)

    async def _start(self, request: Request, age_ms: int) -> Answer:
        """Ask the present home, once parts that drain have said that no task runs there."""
        await self._check_former_homes(request)
        home = to_part(request, request.queue) if request.queue.parts else request
        return await self._router.ask(home, age_ms)

    async def _check_former_homes(self, request: Request) -> None:
        """Raises InvalidParameterValue if a task of the queue runs at a former home."""
        operation = ListMessageMoveTasks(request.queue.arn)
        for part in parts_with_tasks(request.queue)[1:]:
            answer = await self._router.ask(to_part(request, part, operation))
            assert isinstance(answer, ListMessageMoveTasksResult)
            if any(each.status in ("RUNNING", "CANCELLING") for each in answer.results or ()):
                raise one_at_a_time()

    async def _ask_the_one(self, request: Request, age_ms: int) -> Answer:
        """Ask the part that has the named task. Raises ResourceNotFound if none has."""
        refusal = ResourceNotFound("Task does not exist.")
        for part in parts_with_tasks(request.queue):
            try:
                return await self._router.ask(to_part(request, part), age_ms)
            except ResourceNotFound as absent:
                refusal = absent
        raise refusal


def _merged(request: Request, answers: Sequence[Answer]) -> Answer:
    """The lists of all these parts together, newest first."""
    operation = request.operation
    if isinstance(operation, ReadMoveTasks):
        lists = [each.tasks for each in answers if isinstance(each, MoveTasks)]
        by_number = {task.number: task for each in lists for task in each}
        newest = sorted(by_number.values(), key=lambda task: -task.number)
        return MoveTasks(newest[: operation.limit])
    assert isinstance(operation, ListMessageMoveTasks)
    results = [
        result
        for each in answers
        if isinstance(each, ListMessageMoveTasksResult)
        for result in each.results or ()
    ]
    results.sort(key=lambda result: -(result.started_timestamp or 0))
    limit = operation.max_results or MOVE_TASK_RESULTS.default or 1
    return ListMessageMoveTasksResult(results[:limit] or None)
