"""Unlocking: asks the earlier parts of FIFO queues about the groups that wait for them.

The first message of a group in a part with earlier parts waits (`visibility/rules/group_locks.py`).
The host that leads the part asks each earlier part whether it has messages of the group, and
unlocks the group once none has. It asks as soon as groups are locked, then all again each second.
Nobody remembers that it asked: a new leader begins anew.
"""

from __future__ import annotations

import asyncio

import structlog

from cluster.clock import Entropy
from cluster.shards.queue_watch import own_request
from cluster.shards.router import Router
from cluster.shards.shard_report import News
from visibility.contract.errors import QueueError
from visibility.contract.model import Definitions, QueueDefinition, Request
from visibility.contract.operations import Operation
from visibility.contract.outcomes import GroupsHeld, LockedGroups
from visibility.rules.earlier_parts import PAGE_GROUPS, FindGroups, ReadLockedGroups, UnlockGroups

LOOK_S = 1.0
"""Interval of the looks at all locked groups."""
_REST_S = 1e-4
"""Pause for each group before all of a part are asked for again, so that many of them that wait for
hours cost little."""


class Unlocking:
    """Asks for the shards that this host leads."""

    def __init__(self, router: Router, view: Definitions, entropy: Entropy) -> None:
        self._router = router
        self._view = view
        self._entropy = entropy
        self._asking: dict[int, asyncio.Task[None]] = {}
        """The questions under way, by the id of the part with locked groups."""
        self._woken: set[int] = set()
        """Parts that got more locked groups meanwhile."""
        self._places: dict[int, int] = {}
        """Locked groups that were asked for in this look, and stay locked."""
        self._rested_s: dict[int, float] = {}
        """When the loop's clock allows the next look at all."""
        self._is_stopping = False
        self._log = structlog.get_logger("parts")
        for shard in router.shards.values():
            shard.subscribe(self.wake)

    def wake(self, number: int, news: News) -> None:
        """Ask for the new locked groups of a shard."""
        if news is News.LOCKS:
            for queue_id in self._router.shards[number].locking():
                self._begin(queue_id)

    async def look(self) -> None:
        """Ask for all locked groups of this host's parts."""
        now_s = asyncio.get_running_loop().time()
        leading = [shard for shard in self._router.shards.values() if shard.ready]
        ids = {queue_id for shard in leading for queue_id in shard.locking()}
        for queue_id in ids:
            if queue_id not in self._asking and self._rested_s.get(queue_id, 0) <= now_s:
                self._places.pop(queue_id, None)
                self._begin(queue_id)
        self._places = {each: at for each, at in self._places.items() if each in ids}
        self._rested_s = {each: at for each, at in self._rested_s.items() if each in ids}

    def stop(self) -> None:
        """Ask no more; what is locked is asked for after the next start."""
        self._is_stopping = True
        for task in self._asking.values():
            task.cancel()

    def _begin(self, queue_id: int) -> None:
        if self._is_stopping:
            return
        self._woken.add(queue_id)
        if queue_id not in self._asking:
            task = self._asking[queue_id] = asyncio.get_running_loop().create_task(
                self._run(queue_id)
            )
            task.add_done_callback(lambda _: self._ended(queue_id))

    def _ended(self, queue_id: int) -> None:
        del self._asking[queue_id]
        if queue_id in self._woken:
            self._begin(queue_id)

    # -- one part ----------------------------------------------------------------------------------

    async def _run(self, queue_id: int) -> None:
        try:
            while queue_id in self._woken:
                self._woken.discard(queue_id)
                while await self._ask_page(queue_id):
                    pass
        except QueueError as error:
            self._woken.discard(queue_id)
            self._log.info("groups_wait", queue_id=queue_id, reason=error.code)
        except Exception:  # a bug, which must not end the looks
            self._woken.discard(queue_id)
            self._log.exception("groups_not_unlocked", queue_id=queue_id)
        rest_s = _REST_S * self._places.get(queue_id, 0)
        self._rested_s[queue_id] = asyncio.get_running_loop().time() + rest_s

    async def _ask_page(self, queue_id: int) -> bool:
        """Ask about the next locked groups; False if there are no more. Raises QueueError."""
        part = self._view.queue_of_id(queue_id)
        if part is None:
            return False
        place = self._places.get(queue_id, 0)
        page = await self._ask_here(part, ReadLockedGroups(place))
        assert isinstance(page, LockedGroups)
        if not page.groups:
            return False
        held = await self._held(part, page.groups)
        free = [group for group in page.groups if group not in held]
        if free:
            await self._ask_here(part, UnlockGroups(free))
        self._places[queue_id] = place + len(page.groups) - len(free)
        return len(page.groups) == PAGE_GROUPS

    async def _held(self, part: QueueDefinition, groups: list[bytes]) -> set[bytes]:
        """The groups of which an earlier part has messages, or does not say that it has none."""
        questions: dict[int, tuple[QueueDefinition, list[bytes]]] = {}
        for group in groups:
            for earlier in part.earlier_parts(group) if part.parts else ():
                questions.setdefault(earlier.queue_id, (earlier, []))[1].append(group)
        answers = await asyncio.gather(*(self._ask(*each) for each in questions.values()))
        return {group for answer in answers for group in answer}

    async def _ask(self, earlier: QueueDefinition, groups: list[bytes]) -> list[bytes]:
        try:
            answer = await self._router.ask(self._request(earlier, FindGroups(groups)))
        except QueueError as error:
            number, reason = earlier.part_number, error.code
            self._log.info("part_not_asked", queue=earlier.name, part=number, reason=reason)
            return groups
        assert isinstance(answer, GroupsHeld)
        return answer.groups

    async def _ask_here(self, part: QueueDefinition, operation: Operation) -> object:
        return await self._router.ask_here(self._request(part, operation))

    def _request(self, part: QueueDefinition, operation: Operation) -> Request:
        return own_request(operation, part, f"{self._entropy.bits128():032x}")
