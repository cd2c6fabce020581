"""The end of a simulation: without further faults, all messages are received and deleted."""

from __future__ import annotations

import asyncio
from random import Random

from cluster.tests.simulation import simulated_queues as queues
from cluster.tests.simulation.operator import Operator
from cluster.tests.simulation.resizing import become_whole, check_whole
from cluster.tests.simulation.simulated_client import Client
from cluster.tests.simulation.simulation import Simulation
from visibility.contract.model import QueueCounters
from visibility.tests.prepared import counters

_REST_S = 30.0
"""Longer than every visibility timeout and delay."""
_EXPIRED_S = 700.0
"""Time until the clock is trusted again, and what is too old was removed."""
_ROUNDS_MAX = 200
_HIDDEN_S = 600


async def drain(simulation: Simulation) -> None:
    """Empty all queues into the history; the counters must have the right numbers before."""
    client = Client(simulation, "drain", Random(0))
    queues.stop_dead_letters(simulation.machine.queues)
    has_parts = bool(simulation.machine.queues.before)
    if has_parts:
        await become_whole(client)
    await _rest(simulation, client)
    if await _let_expire(simulation, client):
        await _rest(simulation, client)
    simulation.history.drain_begun = simulation.time.read()
    for name in simulation.history.queues:
        counted = await _counted(client, name)
        found = await _empty(client, name, 1 if counted is None else counted[0])
        if counted != (found, 0, 0):
            simulation.machine.violations.append(f"{name} counts {counted}, and has {found}")
        left = await _counted(client, name)
        if left != (0, 0, 0):
            simulation.history.left[name] = left or (-1, -1, -1)
    if has_parts:
        await check_whole(client, _ROUNDS_MAX)


async def _rest(simulation: Simulation, client: Client) -> None:
    """Release all that is held, and wait until nothing is hidden, delayed or moving. A message on
    its way to another part is held there again."""
    operator = Operator(simulation, "release", Random(0))
    for _ in range(_ROUNDS_MAX):
        if simulation.history.holds:
            await operator.release_all()
        if simulation.machine.queues.before:
            await become_whole(client)  # leaders look all the time, operators try again
        await asyncio.sleep(_REST_S)  # parts that close now give away what they have meanwhile
        all_counted = [await _counted(client, name) for name in simulation.history.queues]
        if not simulation.is_moving and all(
            each is not None and each[1:] == (0, 0) for each in all_counted
        ):
            return
    simulation.machine.violations.append(f"the queues do not come to rest: {all_counted}")


async def _let_expire(simulation: Simulation, client: Client) -> bool:
    """Wait until the queues are empty whose messages are all too old by now; False if there are
    none."""
    named = [name for name in queues.EXPIRING if name in simulation.history.queues]
    begun_s = asyncio.get_running_loop().time()
    for name in named:
        while await _counted(client, name) != (0, 0, 0):
            if asyncio.get_running_loop().time() > begun_s + _EXPIRED_S:
                return True  # the drain will find what is left
            await asyncio.sleep(_REST_S)
    return bool(named)


async def _counted(client: Client, name: str) -> tuple[int, int, int] | None:
    answer = (await client.ask(counters(client.queue(name)), f"count {name}")).answer
    if not isinstance(answer, QueueCounters):
        return None
    return answer.visible, answer.in_flight, answer.delayed


async def _empty(client: Client, name: str, counted: int) -> int:
    """Receive and delete until nothing comes any more; returns the number of messages, of which as
    many as were `counted` are waited for."""
    found = 0
    for _ in range(_ROUNDS_MAX):
        # A short one may pass over a part that does not answer at once.
        wait_s = 20 if client.queue(name).parts and found < counted else 0
        held = await client.receive(name, 10, timeout_s=_HIDDEN_S, wait_s=wait_s)
        if not held:
            break
        found += len(held)
        await client.delete_batch(held)
    return found
