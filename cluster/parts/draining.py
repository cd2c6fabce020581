"""Draining: parts that drain are asked whether they are empty, and removed once they are."""

from __future__ import annotations

import structlog

from cluster.catalog.catalog import Catalog
from cluster.shards.queue_watch import own_request
from cluster.shards.router import Router
from visibility.contract.errors import QueueError
from visibility.contract.model import QueueDefinition
from visibility.contract.outcomes import MoveTasks, PartReading
from visibility.rules.closing_parts import CheckPart
from visibility.rules.move_tasks import READ_MAX, ReadMoveTasks
from visibility.rules.shared_moves import KeepMoveTasks

DRAIN_CHECK_S = 1.0
"""Interval of the looks."""


class Draining:
    """The host that leads a part's shard does it."""

    def __init__(self, catalog: Catalog, router: Router) -> None:
        self._catalog = catalog
        self._router = router
        self._log = structlog.get_logger("parts")

    async def look(self) -> None:
        """Ask the parts that drain, and remove those that are empty; the next look goes on."""
        for queue in list(self._catalog.split.values()):
            for part in queue.all_parts():
                if not part.part.is_open and self._router.leads(part.shard):
                    await self._look_at(part)

    async def _look_at(self, part: QueueDefinition) -> None:
        try:
            answer = await self._router.ask_here(own_request(CheckPart(), part))
            assert isinstance(answer, PartReading)
            if answer.drained_version:
                await self._give_tasks(part)
                await self._catalog.remove_part(part.queue_id, part.version)
                if self._catalog.queue_of_id(part.queue_id) is None:
                    self._log.info("part_removed", queue=part.name, part=part.part.number)
        except QueueError as error:
            number, text = part.part.number, str(error)
            self._log.warning("part_not_looked_at", queue=part.name, part=number, error=text)

    async def _give_tasks(self, part: QueueDefinition) -> None:
        """Let the home keep the move tasks of a part that was it. Raises QueueError."""
        home = next(each for each in part.all_parts() if each.is_home)
        reading = own_request(ReadMoveTasks(limit=READ_MAX), part)
        tasks = await self._router.ask_here(reading)
        assert isinstance(tasks, MoveTasks)
        if tasks.tasks:
            keeping = KeepMoveTasks(tasks.tasks)
            await self._router.ask(own_request(keeping, home, reading.request_id))
