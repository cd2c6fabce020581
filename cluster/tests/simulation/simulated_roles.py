"""Roles of the clients: their repeated work."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from random import Random
from string import ascii_lowercase
from typing import Any

from cluster.tests.simulation import simulated_queues as queues
from cluster.tests.simulation.operator import HeldMessage, Operator
from cluster.tests.simulation.simulated_client import Client, Held
from cluster.tests.simulation.simulation import Simulation

_PAUSES_S = (0.0, 0.0, 0.001, 0.005, 0.05, 0.5, 2.0)
_HELD_MAX = 20
_TOO_MANY = 3
"""Receives after which a message of a failing queue is a dead letter."""
_HELD_IN = (
    queues.LETTERS,
    queues.LETTERS_FIFO,
    queues.ORDER,
    queues.RESCUED,
    queues.PLAIN,
    queues.FAILING_FIFO,
)
_BEHIND_MS = (None, -60_000, 10, 100, 700, 1_900, 3_000, 20_000)
"""Times by which a sender's clock is behind; None for one that is not told."""
_ALIKE_CLIENTS = 8
_ALIKE_PAUSE_S_MAX = 0.01

Role = Callable[[Client, int], Coroutine[Any, Any, None]]


async def _pause(client: Client) -> None:
    await asyncio.sleep(client.random.choice(_PAUSES_S))


async def send_to_standard(client: Client, steps: int) -> None:
    """Send to the standard queues, with delays and groups."""
    for _ in range(steps):
        queue = client.random.choice((queues.PLAIN, queues.FAIR, queues.FAILING))
        group = client.random.choice(("a", "a", "b", "c")) if queue == queues.FAIR else ""
        bodies = [client.new_body() for _ in range(client.random.choice((1, 1, 1, 3, 10)))]
        delay_s = client.random.choice((0, 0, 0, 1, 4))
        await client.send(queue, bodies, group=group, delay_s=delay_s)
        await _pause(client)


async def schedule(client: Client, steps: int) -> None:
    """Schedule messages for an instant."""
    for _ in range(steps):
        queue = client.random.choice((queues.PLAIN, queues.FAIR))
        group = client.random.choice("ab") if queue == queues.FAIR else ""
        bodies = [client.new_body() for _ in range(client.random.choice((1, 1, 3)))]
        await client.schedule(
            queue, bodies, group=group, delay_s=client.random.choice((-1, 0, 1, 3, 20))
        )
        await _pause(client)


async def send_to_fifo(client: Client, steps: int) -> None:
    """Send to the client's own groups, in order."""
    places: dict[tuple[str, str], int] = {}
    given_up = 0
    for _ in range(steps):
        queue = client.random.choice((queues.ORDER, queues.ORDER, queues.FAILING_FIFO))
        group = f"{client.name}{client.random.randrange(2)}.{given_up}"
        place = await client.send_in_order(queue, group, places.get((queue, group), 1))
        if place is None:
            given_up += 1
        else:
            places[queue, group] = place
        await _pause(client)


async def consume(client: Client, steps: int) -> None:
    """Receive, then delete, hide, show or forget; some handles are used late."""
    held: list[Held] = []
    for _ in range(steps):
        queue = client.random.choice(queues.NAMES)
        timeout_s = client.random.choice((None, None, 1, 8))
        wait_s = client.random.choice((0, 0, 0, 2, 20))
        if client.random.random() < 0.1:
            await client.poll_and_hang_up(queue, wait_s or 1)
            continue
        most = client.random.choice((1, 2, 10))
        received = await client.receive(queue, most, timeout_s=timeout_s, wait_s=wait_s) or []
        if len(received) > 1 and client.random.random() < 0.3 and "failing" not in queue:
            await client.delete_batch(received)
            continue
        for each in received:
            await _use(client, each, held)
        del held[:-_HELD_MAX]
        await _pause(client)


async def _use(client: Client, held: Held, late: list[Held]) -> None:
    choice = client.random.random()
    if "failing" in held.delivery.queue:
        choice = 0.5 + choice / 2  # most become dead letters
    if choice < 0.4:
        await client.delete(held)
    elif choice < 0.55:
        await client.delete_twice_at_once(held)
    elif choice < 0.7:
        await client.change_visibility(held, client.random.choice((0, 0, 2, 10)))
    elif choice < 0.8:
        late.append(held)
    elif late:
        await client.delete(late.pop(client.random.randrange(len(late))))


async def spend(client: Client, steps: int) -> None:
    """Receive from the failing queues until their messages are dead letters."""
    for _ in range(steps):
        queue = client.random.choice((queues.FAILING, queues.FAILING_FIFO))
        await client.receive(queue, 10, timeout_s=client.random.choice((0, 0, 1)))
        await _pause(client)


async def cross(client: Client, steps: int) -> None:
    """Send what becomes a dead letter, let it, and move dead letters: between shards."""
    places: dict[str, int] = {}
    given_up = 0
    for _ in range(steps):
        choice = client.random.random()
        if choice < 0.2:
            bodies = [client.new_body() for _ in range(client.random.choice((1, 3, 10)))]
            await client.send(queues.FAILING, bodies)
        elif choice < 0.4:
            group = f"{client.name}{client.random.randrange(2)}.{given_up}"
            place = await client.send_in_order(queues.FAILING_FIFO, group, places.get(group, 1))
            given_up += place is None
            places[group] = place or 1
        elif choice < 0.8:
            queue = client.random.choice((queues.FAILING, queues.FAILING_FIFO))
            for _ in range(_TOO_MANY):
                await client.receive(queue, 10, timeout_s=0)
        elif choice < 0.9:
            target = client.random.choice((None, queues.RESCUED))
            await client.move_all(queues.LETTERS, target)
        else:
            await client.move_all(queues.LETTERS_FIFO, None)
        await _pause(client)


async def administer(client: Client, steps: int) -> None:
    """Purge queues and move dead letters."""
    for _ in range(max(1, steps // 4)):
        await _pause(client)
        await asyncio.sleep(client.random.uniform(0, 3))
        choice = client.random.random()
        if choice < 0.25:
            await client.purge(client.random.choice((queues.PLAIN, queues.ORDER, queues.FAIR)))
        elif choice < 0.45:
            await client.move_all(queues.LETTERS, None, client.random.choice((0, 1, 5)))
        elif choice < 0.55:
            await client.move_all(queues.LETTERS, queues.RESCUED)
        elif choice < 0.65:
            await client.hide(client.random.choice(queues.TARGETS))
        elif choice < 0.8:
            await client.move_selected(queues.LETTERS, queues.RESCUED)
        else:
            await client.move_all(queues.LETTERS_FIFO, None)


async def hold_messages(client: Client, steps: int) -> None:
    """Hold messages, release some of them, and move those that match a filter."""
    operator = Operator(client.simulation, client.name, client.random)
    held: list[list[HeldMessage]] = []
    for _ in range(steps):
        await _pause(client)
        choice = client.random.random()
        if choice < 0.5:
            name = client.random.choice(_HELD_IN)
            found = await operator.hold(name, client.random.choice((0, 0, 0, 1, 10)))
            held += [found] if found else []
        elif choice < 0.75 and held:
            await operator.release(held.pop(client.random.randrange(len(held))))
        elif choice < 0.9:
            await operator.move_matching(
                queues.LETTERS, client.random.choice((None, queues.RESCUED))
            )
        else:
            await operator.move_matching(queues.LETTERS_FIFO, None)


async def let_expire(client: Client, steps: int) -> None:
    """Send what expires soon, and receive what has not."""
    await _let_end(client, steps, *queues.SHORT_NAMES)


async def let_times_to_live_end(client: Client, steps: int) -> None:
    """The same in the queues with a time to live."""
    await _let_end(client, steps, *queues.BRIEF_NAMES)


async def _let_end(client: Client, steps: int, standard: str, fifo: str) -> None:
    places: dict[str, int] = {}
    for _ in range(steps):
        choice = client.random.random()
        if choice < 0.3:
            bodies = [client.new_body() for _ in range(client.random.choice((1, 3, 10)))]
            await client.send(standard, bodies)
        elif choice < 0.5:
            group = f"{client.name}{client.random.randrange(2)}"
            place = places.get(group, 1)
            if place:
                sent = await client.send_in_order(fifo, group, place)
                places[group] = sent or 0  # an abandoned group stays so
        else:
            queue = client.random.choice((standard, fifo))
            for held in await client.receive(queue, client.random.choice((1, 10))) or ():
                if client.random.random() < 0.2:
                    await client.delete(held)
        await asyncio.sleep(client.random.choice((0.0, 0.5, 2.0, 10.0)))


async def work_by_priority(client: Client, steps: int) -> None:
    """Send messages of all priorities, receive some, and delete some of those."""
    for _ in range(2 * steps):
        if client.random.random() < 0.5:
            bodies = [client.new_body() for _ in range(client.random.choice((1, 3, 10)))]
            priorities = [client.random.randrange(10) for _ in bodies]
            await client.send_by_priority(queues.RANKED, bodies, priorities)
        else:
            for held in await client.receive(queues.RANKED, client.random.choice((1, 3))) or ():
                if client.random.random() < 0.7:
                    await client.delete(held)
        await _pause(client)


async def work_by_clock(client: Client, steps: int) -> None:
    """Send messages of clocks that are behind or ahead, or say nothing; receive and delete some."""
    for _ in range(2 * steps):
        if client.random.random() < 0.5:
            bodies = [client.new_body() for _ in range(client.random.choice((1, 3, 10)))]
            behind_ms = [client.random.choice(_BEHIND_MS) for _ in bodies]
            await client.send_by_clock(queues.BY_CLOCK, bodies, behind_ms)
        else:
            queue = client.random.choice((queues.BY_CLOCK, queues.BY_CLOCK, queues.LATE))
            wait_s = client.random.choice((0, 0, 5))
            for held in (
                await client.receive(queue, client.random.choice((1, 3)), wait_s=wait_s) or ()
            ):
                if client.random.random() < 0.7:
                    await client.delete(held)
        await _pause(client)


async def fill_up(client: Client, steps: int) -> None:
    """Send more than there is room for, or than waits at most; receive some, and delete some of
    those."""
    for _ in range(4 * steps):
        queue = client.random.choice((queues.FULL, queues.BRIM, queues.BRIM, queues.SLOWED))
        if client.random.random() < 0.6:
            bodies = [client.new_body() for _ in range(client.random.choice((1, 3, 10)))]
            delay_s = client.random.choice((0, 0, 1)) if queue == queues.FULL else 0
            await client.send(queue, bodies, delay_s=delay_s)
        else:
            if queue == queues.BRIM:
                queue = client.random.choice((queues.BRIM, queues.BRIM, queues.SPILL))
            for held in await client.receive(queue, client.random.choice((1, 10))) or ():
                if client.random.random() < 0.7:
                    await client.delete(held)
        await _pause(client)


async def consume_alone(client: Client, steps: int) -> None:
    """Send, receive for long and delete: what a receive that failed hides or counts, shows."""
    place: int | None = 1
    for _ in range(2 * steps):
        if client.random.random() < 0.5:
            queue = queues.SOLE
            await client.send(queue, [client.new_body() for _ in range(3)])
        else:
            queue = queues.SOLE_FIFO
            place = place and await client.send_in_order(queue, f"{client.name}", place)
        for _ in range(2):
            held = await client.receive(queue, 10, timeout_s=600)
            if held:
                await client.delete_batch(held)
        await _pause(client)


async def take_once(client: Client, steps: int) -> None:
    """Send to queues that deliver at most once, and receive from them; some hosts do not say that
    the answer was written, and some clients hang up."""
    place: int | None = 1
    for _ in range(2 * steps):
        if client.random.random() < 0.5:
            queue = queues.ONCE
            await client.send(queue, [client.new_body() for _ in range(3)])
        else:
            queue = queues.ONCE_FIFO
            place = place and await client.send_in_order(queue, client.name, place)
        if client.random.random() < 0.2:
            await client.poll_and_hang_up(queue, wait_s=1)
        held = await client.receive(queue, client.random.choice((1, 10)))
        if held and client.random.random() < 0.8:
            await client.note_written(held)
        await _pause(client)


async def let_die(client: Client, steps: int) -> None:
    """Send to a circle of queues and to queues that are deleted now and then, and look at all."""
    place: int | None = 1
    for _ in range(2 * steps):
        choice = client.random.random()
        if choice < 0.2:
            await client.send(queues.CIRCLE[0], [client.new_body() for _ in range(2)])
        elif choice < 0.35:
            delay_s = client.random.choice((0, 0, 4))
            await client.send(queues.DOOMED, [client.new_body() for _ in range(5)], delay_s=delay_s)
        elif choice < 0.5:
            place = place and await client.send_in_order(queues.DOOMED_FIFO, client.name, place)
        elif choice < 0.65:
            await client.delete_for_a_while(
                client.random.choice((queues.DOOMED, queues.DOOMED_FIFO))
            )
        for name in queues.CIRCLE[1:]:
            await client.receive(name, 10, timeout_s=0)
        name = client.random.choice((queues.DOOMED, queues.DOOMED_FIFO, queues.GRAVE))
        for held in await client.receive(name, client.random.choice((1, 10))) or ():
            if client.random.random() < 0.2:
                await client.delete(held)
        await asyncio.sleep(client.random.choice((0.0, 0.5, 2.0)))


async def send_alike(client: Client, steps: int) -> None:
    """Send messages of one size, singly: an Entry may then end where a forgotten one of the same
    size did."""
    for _ in range(steps):
        await client.simulation.connected()
        await asyncio.sleep(client.random.uniform(0, _ALIKE_PAUSE_S_MAX))
        await client.send(queues.PLAIN, [client.new_body(padded_to=1_000)])


_ROLES: tuple[Role, ...] = (send_to_standard, send_to_fifo, consume, consume)


def mixed_roles(random: Random, *, crosses: bool = False) -> list[Role]:
    """Clients that do all kinds of work; `crosses`: much of it makes messages change the shard."""
    roles = [*_ROLES, cross, cross] if crosses else list(_ROLES)
    if random.random() < 0.5:
        roles.append(random.choice((send_to_standard, send_to_fifo, consume)))
    if random.random() < 0.5:
        roles.append(spend)
    if random.random() < 0.6:
        roles.append(administer)
    return roles


def drawn_operator(seed: int) -> bool:
    """True in half of the seeds: an operator works in this one."""
    return Random(f"operators {seed}").random() < 0.5


def drawn_short(seed: int) -> bool:
    """True in a quarter of the seeds: messages expire in this one."""
    return Random(f"retention {seed}").random() < 0.25


def drawn_sole(seed: int) -> bool:
    """True in a quarter of the seeds: a consumer works alone in this one."""
    return Random(f"sole consumer {seed}").random() < 0.25


def drawn_once(seed: int) -> bool:
    """True in a quarter of the seeds: queues deliver at most once in this one."""
    return Random(f"at most once {seed}").random() < 0.25


def drawn_schedules(seed: int) -> bool:
    """True in a quarter of the seeds: messages are scheduled in this one."""
    return Random(f"schedules {seed}").random() < 0.25


def drawn_brief(seed: int) -> bool:
    """True in a quarter of the seeds: messages have a time to live in this one."""
    return Random(f"times to live {seed}").random() < 0.25


def drawn_transactions(seed: int) -> bool:
    """True in a third of the seeds: a client makes transactions in this one."""
    return Random(f"transactions {seed}").random() < 0.33


def drawn_ranked(seed: int) -> bool:
    """True in a quarter of the seeds: messages have priorities in this one."""
    return Random(f"priorities {seed}").random() < 0.25


def drawn_clocks(seed: int) -> bool:
    """True in a quarter of the seeds: messages are ordered by their senders' clocks in this one."""
    return Random(f"senders' clocks {seed}").random() < 0.25


def drawn_full(seed: int) -> bool:
    """True in a quarter of the seeds: a queue is full in this one."""
    return Random(f"limits of length {seed}").random() < 0.25


def drawn_deaths(seed: int) -> bool:
    """True in a quarter of the seeds: messages die of all causes in this one."""
    return Random(f"causes of death {seed}").random() < 0.25


def drawn_parts(seed: int) -> bool:
    """True in a third of the seeds: queues get parts in this one."""
    return Random(f"parts {seed}").random() < 0.33


def alike_roles() -> list[Role]:
    """Clients that send messages of one size."""
    return [send_alike] * _ALIKE_CLIENTS


async def work(
    simulation: Simulation,
    random: Random,
    roles: Sequence[Role],
    steps: int,
    names: str = ascii_lowercase,
) -> None:
    """Let clients with these roles and names work at the same time."""
    async with asyncio.TaskGroup() as tasks:
        for name, role in zip(names, roles, strict=False):
            client = Client(simulation, name, Random(random.getrandbits(64)))
            tasks.create_task(role(client, steps))
