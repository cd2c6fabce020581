"""A shard that remembers its answers, and requests with ids of their own."""

from __future__ import annotations

from itertools import count

import msgspec

from cluster.tests.world import World, settled
from visibility.contract.errors import QueueError
from visibility.contract.model import Request
from visibility.contract.outcomes import Answer
from visibility.rows.row_codec import decode_row
from visibility.rows.row_keys import ANSWERS
from visibility.state.short_answers import AnswersRow
from visibility.tests import prepared

STANDARD = prepared.queue_named("standard", 1)
FIFO = prepared.queue_named("ordered.fifo", 2)
SOURCE = prepared.queue_named("source", 3, dead_letters_to=STANDARD)
_NUMBERS = count(1)


def named(request: Request) -> Request:
    """The request with an id of its own, as the gateway gives them."""
    return msgspec.structs.replace(request, request_id=f"request-{next(_NUMBERS)}")


async def a_world(**options: object) -> World:
    world = World(remembers=True, **options)  # type: ignore[arg-type]
    for queue in (STANDARD, FIFO, SOURCE):
        world.queues.define(queue)
    return await world.start()


async def answer_to(world: World, request: Request, age_ms: int = 0) -> Answer | QueueError:
    asked = world.ask(request, age_ms)
    await settled()
    (answer,) = asked.answers
    return answer


def rows(world: World, *tables: bytes) -> dict[bytes, bytes]:
    """Rows of these tables, or of all but the remembered answers."""
    return {
        key: value
        for key, value in world.store.rows.items()
        if (key[8:9] in tables if tables else key[8:9] != ANSWERS)
    }


def remembered(world: World) -> list[AnswersRow]:
    """The rows of remembered answers, oldest first."""
    return [decode_row(AnswersRow, *row) for row in sorted(rows(world, ANSWERS).items())]
