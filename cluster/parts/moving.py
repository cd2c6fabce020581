"""Moving: a part of a queue goes to another shard, and so does an unsplit queue."""

from __future__ import annotations

from auth.caller import Caller
from cluster.catalog.catalog import Catalog
from cluster.parts.part_readings import new_parts, read_all_parts
from cluster.shards.router import Router
from visibility.contract.errors import ServiceUnavailable
from visibility.contract.model import QueueDefinition


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
