"""Readings of all parts of a queue, as a change of parts needs them; the move of one to a shard."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from auth.caller import Caller
from cluster.catalog.catalog import Catalog
from cluster.catalog.part_rules import NewParts
from cluster.parts.part_requests import to_part
from cluster.shards.router import Router
from visibility.contract.errors import QueueError, ServiceUnavailable, UnsupportedOperation
from visibility.contract.model import QueueDefinition, Request
from visibility.contract.outcomes import PartReading
from visibility.rules.queue_parts import CheckPart, in_flight_max


async def read_parts(
    router: Router, queue: QueueDefinition, caller: Caller, request_id: str
) -> dict[int, PartReading | None]:
    """The readings of all parts by queue id, None where a shard does not answer. Raises
    UnsupportedOperation on a gateway."""
    request = Request(CheckPart(), queue, caller, request_id)

    async def reading(part: QueueDefinition) -> PartReading | None:
        try:
            answer = await router.ask(to_part(request, part))
        except UnsupportedOperation:
            raise
        except QueueError:
            return None
        assert isinstance(answer, PartReading)
        return answer

    parts = queue.all_parts()
    found = await asyncio.gather(*map(reading, parts))
    return {part.queue_id: each for part, each in zip(parts, found, strict=True)}


async def read_all_parts(
    router: Router, queue: QueueDefinition, caller: Caller, request_id: str
) -> dict[int, PartReading]:
    """The readings of all parts by queue id. Raises ServiceUnavailable if a part does not answer,
    UnsupportedOperation on a gateway."""
    found = await read_parts(router, queue, caller, request_id)
    readings = {queue_id: each for queue_id, each in found.items() if each is not None}
    if len(readings) < len(found):
        raise ServiceUnavailable(f"A part of queue {queue.name} does not answer. Try again.")
    return readings


def new_parts(shards: Sequence[int], readings: Mapping[int, PartReading]) -> NewParts:
    """New parts on these shards, for a queue whose parts, all of them, say this."""
    return NewParts(
        shards,
        {queue_id: each.next_sequence for queue_id, each in readings.items()},
        {queue_id for queue_id, each in readings.items() if each.messages},
    )


def too_many_in_flight(
    queue: QueueDefinition, readings: Mapping[int, PartReading], count: int
) -> str:
    """The reason against so many more parts, after which more than the queue's limit could be in
    flight; empty without one."""
    share = in_flight_max(queue) * len(readings) // (len(readings) + count)
    most = max(reading.in_flight for reading in readings.values())
    if most <= share:
        return ""
    return (
        f"A part of queue {queue.name} has {most} messages in flight, and could have {share} "
        "after this. Try again when consumers have deleted some."
    )


async def move_part(
    catalog: Catalog,
    router: Router,
    part: QueueDefinition,
    shard: int,
    caller: Caller,
    request_id: str,
) -> QueueDefinition:
    """Put a new part on `shard` in place of this one, which drains into it; returns the queue. It
    is begun when this returns; `Draining` removes the old part when that is empty.

    `part` is a definition of `QueueDefinition.all_parts`, or an unsplit queue. Raises QueueError:
    see `part_rules.move_part`, and ServiceUnavailable for a shard without a leader.
    """
    if not (router.leads(shard) or router.is_led_elsewhere(shard)):
        raise ServiceUnavailable(f"Shard {shard} has no leader.")
    queue = catalog.queue(part.account, part.region, part.name)
    readings = await read_all_parts(router, queue, caller, request_id)
    return await catalog.move_part(queue, part.part_number, new_parts([shard], readings))
