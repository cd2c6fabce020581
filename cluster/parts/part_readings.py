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
from visibility.contract.length_tags import limits_of
from visibility.contract.levelling_tags import in_flight_limits
from visibility.contract.model import QueueDefinition, Request
from visibility.contract.outcomes import PartReading
from visibility.rules.closing_parts import CheckPart


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


def above_share(queue: QueueDefinition, readings: Mapping[int, PartReading], count: int) -> str:
    """The reason against `count` more parts, after which all of them together could have more than
    the queue's limits allow; empty without one."""
    own_tags, parts = queue.settings.own_tags, len(readings) + count
    share, _ = in_flight_limits(own_tags, parts)
    limits = limits_of(own_tags, parts)
    found = [("messages in flight", share, max(each.in_flight for each in readings.values()))]
    if limits is not None:
        messages, size = limits
        found.append(("messages", messages, max(each.messages for each in readings.values())))
        found.append(("bytes of messages", size, max(each.size for each in readings.values())))
    for unit, least, most in found:
        if most > least:
            return (
                f"A part of queue {queue.name} has {most} {unit}, and could have {least} after "
                "this. Try again when consumers have deleted some."
            )
    return ""


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
    if not router.has_leader(shard):
        raise ServiceUnavailable(f"Shard {shard} has no leader.")
    queue = catalog.queue(part.account, part.region, part.name)
    readings = await read_all_parts(router, queue, caller, request_id)
    return await catalog.move_part(queue, part.part_number, new_parts([shard], readings))
