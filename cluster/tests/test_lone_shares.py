"""Shares of a move task whose home is lost with its shard: nobody gives orders any more."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from random import Random
from typing import Any, NamedTuple, cast

import msgspec

from cluster.parts.shared_tasks import SharedTasks
from cluster.tests.driver import Driver
from cluster.tests.simulation.simulated_worker import SimulatedEntropy
from cluster.tests.test_moves_to_parts import Shards
from cluster.tests.test_shared_moves import Tasks
from cluster.tests.virtual_time import virtual
from visibility.contract.model import Request
from visibility.contract.move_task import MoveTask
from visibility.contract.outcomes import Answer
from visibility.contract.queue_parts import GonePart, PartState
from visibility.rules.move_tasks import MoveSelected

HOME = 1


class Led(NamedTuple):
    """A shard that this host leads."""

    driver: Driver
    ready: bool = True

    def sharing(self) -> dict[int, MoveTask]:
        """See `Shard.sharing`."""
        state = self.driver.state
        tasks = {each: state.queue(each).active_task for each in state.sharing}
        return {each: task for each, task in tasks.items() if task is not None}


class Host(Tasks):
    """Leads the shards of the other parts, and passes for a router."""

    def __init__(self) -> None:
        super().__init__()
        self.fill()
        self.start(MoveSelected(rate=1))
        self.look()
        self.shards = {
            number: Led(driver) for number, driver in enumerate(self.drivers) if number != HOME
        }

    async def ask(self, request: Request) -> Answer:
        """See `Router`."""
        return self.submit(request)

    ask_here = ask

    def lose_the_home(self) -> None:
        """The queue goes on with the others; the record names the lost part."""
        home, *others = self.letters.parts
        gone = GonePart(home.number, others[0].number, 0, home.shard)
        self.letters = msgspec.structs.replace(self.letters, gone=(gone,))
        Shards.change(self, *others)

    async def look_at_shares(self, lost: Collection[int]) -> None:
        """Do as the leaders of the parts do."""
        entropy = SimulatedEntropy(Random(0))
        shared = SharedTasks(cast(Any, self), cast(Any, self.queues), entropy, lost)
        for _ in range(3):
            await shared.look()
            await asyncio.sleep(0.1)
        shared.stop()


@virtual
async def test_shares_end_when_no_part_knows_their_task() -> None:
    host = Host()
    host.lose_the_home()
    assert host.active == [16, 32]

    await host.look_at_shares({HOME})

    host.pass_time(1)
    assert host.active == []
    host.start()
    assert host.finish().status == "COMPLETED"


@virtual
async def test_shares_stay_while_a_former_home_has_their_task() -> None:
    """Here another part was lost, and the home drains."""
    host = Host()
    home, *others = host.letters.parts
    host.letters = msgspec.structs.replace(host.letters, gone=(GonePart(48, 16, 0, 9),))
    drains = msgspec.structs.replace(home, state=PartState.DRAINING)
    Shards.change(host, others[0], drains, *others[1:])

    await host.look_at_shares({9})

    assert 16 in host.active


@virtual
async def test_shares_of_a_queue_that_lost_nothing_are_left_alone() -> None:
    host = Host()
    host.lose_the_home()

    await host.look_at_shares(set())

    assert host.active == [16, 32]
