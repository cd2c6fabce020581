"""Moving: a part of a queue goes to another shard, and so does an unsplit queue."""

from __future__ import annotations

import asyncio

from auth.caller import Caller
from cluster.catalog.catalog import Catalog
from cluster.catalog.part_rules import NewParts
from cluster.parts.part_requests import to_part
from cluster.shards.router import Router
from visibility.contract.errors import ServiceUnavailable
from visibility.contract.model import QueueDefinition, Request
from visibility.contract.outcomes import PartReading
from visibility.rules.queue_parts import CheckPart


async def read_parts(
    router: Router, queue: QueueDefinition, caller: Caller, request_id: str
) -> dict[int, PartReading]:
    """The readings of all parts, by queue id. Raises QueueError if one does not answer."""
    request = Request(CheckPart(), queue, caller, request_id)
    parts = queue.all_parts()
    answers = await asyncio.gather(*(router.ask(to_part(request, part)) for part in parts))
    found = zip(parts, answers, strict=True)
    return {part.queue_id: each for part, each in found if isinstance(each, PartReading)}


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
    readings = await read_parts(router, queue, caller, request_id)
    sequences = {queue_id: each.next_sequence for queue_id, each in readings.items()}
    return await catalog.move_part(queue, part.part_number, NewParts([shard], sequences))
