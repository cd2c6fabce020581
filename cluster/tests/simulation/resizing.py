"""An operator who splits queues, moves parts and shrinks queues again, and the removal of their
empty parts."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from cluster.catalog.part_rules import shards_for
from cluster.fleet.plan_records import MadeChange
from cluster.fleet.steps import StepRefused, not_available, undoing
from cluster.parts.part_readings import above_share, new_parts
from cluster.parts.part_requests import to_part
from cluster.tests.simulation import simulated_queues as queues
from cluster.tests.simulation.planned_parts import planned_split
from cluster.tests.simulation.simulated_client import Client
from visibility.contract.errors import UnsupportedOperation
from visibility.contract.model import QueueDefinition
from visibility.contract.outcomes import PartReading
from visibility.contract.queue_parts import PARTS_MAX
from visibility.rules.closing_parts import CheckPart, PartsAdded
from visibility.tests import prepared

_SENT = (queues.PLAIN, queues.FAIR, queues.FAILING)
_STANDARD = (*_SENT, queues.LETTERS, queues.RESCUED)
_FIFO = (queues.ORDER, queues.FAILING_FIFO, queues.LETTERS_FIFO)
_WITH_POLICIES = (
    *queues.ONCE_NAMES,
    *queues.BRIEF_NAMES,
    queues.FULL,
    queues.BRIM,
    queues.SPILL,
    queues.RANKED,
)
"""Queues of extras, which are split where they are."""
_MOST = 4
_AGAIN_S = 30.0
"""Interval of the looks at the end: closed parts remember ids for some minutes."""


class Resizer(Client):
    """See above."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._made: dict[str, MadeChange] = {}
        """The manager's last split of each queue."""
        own = [name for name in _WITH_POLICIES if name in self._history.queues]
        self.fifo = [*_FIFO, *(name for name in own if name.endswith(".fifo"))]
        self.standard = [*_STANDARD, *(name for name in own if not name.endswith(".fifo"))]

    @property
    def all_queues(self) -> list[str]:
        """Those that may be split."""
        return [*self.standard, *self.fifo]

    async def split(self, name: str, count: int, most: int = _MOST) -> None:
        """Add parts; nothing without the answers of all that there are. A FIFO queue gets so many
        in the place of all others."""
        queue = self.queue(name)
        if len(queue.parts) + count > most:
            return
        known = await self.known(queue)
        if known is None or above_share(queue, known, count):
            return
        machine = self.simulation.machine
        shards = shards_for(queue, self.shards, count)
        was_whole = not queue.parts
        change = machine.queues.replace if queue.settings.fifo else machine.queues.split
        try:
            change(queue, new_parts(shards, known))
        except UnsupportedOperation:
            return  # earlier parts still have messages
        self.simulation.note(f"{self.name} splits {name}: {len(self.queue(name).parts)} parts")
        if was_whole:
            await self._tell(queue)

    async def _tell(self, before: QueueDefinition) -> None:
        """The shard of a queue that was whole hears that it has parts."""
        name = before.name
        parts = self.queue(name).all_parts()
        whole = next(part for part in parts if part.queue_id == before.queue_id)
        await self.ask(prepared.prepared(whole, PartsAdded()), f"split {name}")

    async def plan(self, name: str) -> None:
        """Make the split that the manager wants of a queue, or undo the one that it made last."""
        queue = self.queue(name)
        known = await self.known(queue)
        if known is None:
            return
        machine = self.simulation.machine
        made = self._made.pop(name, None)
        try:
            if made is None:
                change = planned_split(machine.queues, queue, known, len(machine.shards))
            else:
                change = undoing(made, queue)
            if change is None or not_available(cast(Any, machine.queues), change, queue):
                return
            if above_share(queue, known, len(change.opens)):
                return
            now_made = machine.queues.make(queue, change, new_parts(change.opens, known))
        except (UnsupportedOperation, StepRefused):
            return  # earlier parts still have messages, or the new ones have gone
        if made is None:
            self._made[name] = now_made
        self.simulation.note(f"the manager's {change.kind.value} of {name}: {len(change.opens)}")
        if not queue.parts:
            await self._tell(queue)

    async def known(self, queue: QueueDefinition) -> dict[int, PartReading] | None:
        """The readings of all parts; None if a purge comes between, or one is silent."""
        known: dict[int, PartReading] = {}
        for part in queue.all_parts():
            reading = await self._reading(part)
            if reading is None:
                return None
            known[part.queue_id] = reading
        now = self.queue(queue.name).all_parts()
        return known if {part.queue_id for part in now} == known.keys() else None

    async def move(self, name: str) -> None:
        """Move a part to any shard, the home or another; an unsplit queue, too."""
        queue = self.queue(name)
        known = await self.known(queue)
        if known is None or len(known) >= PARTS_MAX:
            return
        parts = [each for each in queue.all_parts() if not each.parts or each.part.is_open]
        part = self.random.choice(parts)
        await self.move_part(queue, part, self.random.choice(self.shards), known)

    @property
    def shards(self) -> list[int]:
        """Those that take new parts."""
        machine = self.simulation.machine
        return [n for n in range(len(machine.shards)) if n not in machine.queues.draining]

    async def move_part(
        self,
        queue: QueueDefinition,
        part: QueueDefinition,
        shard: int,
        known: dict[int, PartReading],
    ) -> None:
        """Move a part of a queue, whose parts say this."""
        name, machine = queue.name, self.simulation.machine
        try:
            machine.queues.move(queue, part.part_number, new_parts([shard], known))
        except UnsupportedOperation:
            return  # purged messages can be restored, or earlier parts still have messages
        self.simulation.note(f"{self.name} moves part {part.part_number} of {name} to {shard}")
        if not queue.parts:
            polled = machine.queues.queues[queue.queue_id]
            await self.ask(prepared.prepared(polled, PartsAdded()), f"move {name}")

    async def shrink(self, name: str, count: int) -> None:
        """Let parts drain; their shards hear of it now or later."""
        queue = self.queue(name)
        if queue.settings.fifo:
            if sum(part.is_open for part in queue.parts) > 1:
                await self.split(name, 1, PARTS_MAX)
            return
        if self.simulation.machine.queues.unheard:
            return
        numbers = [part.number for part in queue.parts[1:] if part.is_open][-count:]
        self.simulation.machine.queues.drain(queue, numbers)
        self.simulation.note(f"{self.name} shrinks {name}: {numbers}")
        if self.random.random() < 0.5:  # a part may be empty, and closes
            await self.look(name, sends=True)

    async def look_at_shares(self) -> None:
        """Note the queues whose parts are all within their shares, which they were not when parts
        changed. From then on none takes more."""
        for name, resizes in list(self._history.resizes.items()):
            queue, resize = self.queue(name), resizes[-1]
            is_settled = all(part.is_open for part in queue.parts)
            if not self._history.queues[name].messages_max or not is_settled:
                continue
            known = await self.known(queue)
            is_same = self.queue(name).version == queue.version and resize is resizes[-1]
            if known is not None and is_same and not above_share(queue, known, 0):
                resize.ended = min(resize.ended, self.simulation.time.read())

    async def look(self, name: str, *, sends: bool = False) -> None:
        """Remove parts that are empty; `sends` to the queue before that, at times, from a gateway
        that may not have heard of it."""
        for part in self.queue(name).all_parts():
            if not part.parts or part.part.is_open:
                continue
            reading = await self._reading(part)
            if reading is None or not reading.drained_version:
                continue
            await asyncio.sleep(self.random.choice((0, 0.5)))
            if sends and name in _SENT and self.random.random() < 0.5:
                await self.send(name, [self.new_body()])
            self.simulation.machine.queues.remove(part)
            if part.queue_id not in self.simulation.machine.queues.queues:
                self.simulation.note(f"{self.name} removes part {part.part.number} of {name}")
                await self._drop(part)

    async def _reading(self, part: QueueDefinition) -> PartReading | None:
        request = to_part(prepared.prepared(part, CheckPart()), part)
        reply = await self.ask(request, f"look at {part.queue_id}")
        return reply.answer if isinstance(reply.answer, PartReading) else None


async def resize(client: Client, steps: int) -> None:
    """Split and shrink at random moments."""
    resizer = Resizer(client.simulation, client.name, client.random)
    random = client.random
    for _ in range(2 * steps):
        await asyncio.sleep(random.uniform(0, 2))
        await resizer.look_at_shares()
        is_any = client.simulation.unlocks_groups
        name = random.choice(resizer.all_queues if is_any else resizer.standard)
        choice = random.random()
        if client.simulation.has_manager and name in resizer.fifo and choice < 0.6:
            await resizer.plan(name)
        elif choice < 0.1:  # parts close that messages are on their way to
            await client.move_all(queues.LETTERS, queues.RESCUED)
            await asyncio.sleep(random.uniform(0, 0.05))
            await resizer.shrink(queues.RESCUED, PARTS_MAX)
        elif choice < 0.35:
            await resizer.split(name, random.randint(1, 2))
        elif choice < 0.55:
            for _ in range(random.choice((1, 1, 2))):  # what is on its way comes to a closed part
                await resizer.move(name)
                await asyncio.sleep(random.choice((0, 0.05, 0.5)))
        elif choice < 0.65:
            await resizer.shrink(name, random.randint(1, 3))
        else:
            await resizer.look(name, sends=True)


async def become_whole(client: Client) -> None:
    """Shrink all queues that can be, and look at all parts once: they go as soon as they are
    empty."""
    resizer = Resizer(client.simulation, client.name, client.random)
    for name in resizer.all_queues:
        if sum(part.is_open for part in client.queue(name).parts) > 1:
            await resizer.shrink(name, PARTS_MAX)
        await resizer.look(name)


async def check_whole(client: Client, rounds: int) -> None:
    """Assert that each queue is one again."""
    names = client.simulation.history.queues
    for _ in range(rounds):
        await become_whole(client)
        if not any(client.queue(name).parts for name in names):
            return
        await asyncio.sleep(_AGAIN_S)
    for name in names:
        if left := client.queue(name).parts:
            client.simulation.machine.violations.append(f"{name} is not whole: {left}")
