"""Answers about the parts of a queue: the list, more parts, fewer parts, other places."""

from __future__ import annotations

from typing import Annotated, TypedDict

import msgspec

from cluster.catalog.part_rules import NewParts, shards_for
from cluster.parts.part_readings import (
    above_share,
    move_part,
    new_parts,
    read_all_parts,
    read_parts,
)
from sqs_api.admin.asked import Asked
from sqs_api.admin.routes import CHANGE_PARTS, GET_QUEUE, QUEUE, Refused, Route
from sqs_api.operators.operator_context import OperatorContext
from visibility.contract.model import QueueDefinition
from visibility.contract.outcomes import PartReading
from visibility.contract.queue_parts import PARTS_MAX

_PATH = QUEUE + "/parts"


class PartsWanted(msgspec.Struct, forbid_unknown_fields=True):
    """The number of parts that take messages afterwards."""

    parts: Annotated[int, msgspec.Meta(ge=1, le=PARTS_MAX)]


class Place(msgspec.Struct, forbid_unknown_fields=True):
    """The shard to move to, and the number of the part; by default the only open one."""

    shard: Annotated[int, msgspec.Meta(ge=0)]
    part: int | None = None


class ShownPart(TypedDict):
    """A part of a queue; the counters are null where its shard does not answer. `waits_for` is
    what keeps a part that drains, empty for nothing."""

    number: int
    queue_id: int
    shard: int
    state: str
    home: bool
    visible: int | None
    in_flight: int | None
    delayed: int | None
    waits_for: str


class ShownParts(TypedDict):
    """A queue with its parts, the home first. An unsplit queue is one part."""

    name: str
    version: int
    parts: list[ShownPart]


async def list_parts(context: OperatorContext, asked: Asked) -> ShownParts:
    """List the parts of a queue, and what keeps those that drain."""
    return await _shown(context, asked, asked.queue(asked.parts[0]))


async def split_queue(context: OperatorContext, asked: Asked, given: PartsWanted) -> ShownParts:
    """Add parts to a queue, up to the given number; a FIFO queue gets all new ones."""
    asked.noted["parts"] = given.parts
    queue = asked.queue(asked.parts[0])
    count = given.parts - _open(queue)
    if count < 0:
        raise Refused(409, f"Queue {queue.name} has {_open(queue)} parts; `shrink` makes fewer.")
    if count and queue.settings.fifo:
        queue = await _replaced(context, asked, queue, given.parts)
    elif count:
        new = await _new_parts(context, asked, queue, count)
        queue = await context.catalog.add_parts(queue, new)
    return await _shown(context, asked, queue)


async def _replaced(
    context: OperatorContext, asked: Asked, queue: QueueDefinition, count: int
) -> QueueDefinition:
    new = await _new_parts(context, asked, queue, count)
    return await context.catalog.replace_parts(queue, new)


async def _new_parts(
    context: OperatorContext, asked: Asked, queue: QueueDefinition, count: int
) -> NewParts:
    """So many more parts, on the shards with the fewest. Raises Refused, ServiceUnavailable."""
    request_id = f"{context.bits128():032x}"
    readings = await read_all_parts(context.router, queue, asked.caller, request_id)
    if reason := above_share(queue, readings, count):
        raise Refused(409, reason)
    shards = shards_for(queue, context.catalog.shards, count)
    return new_parts(shards, readings)


async def shrink_queue(context: OperatorContext, asked: Asked, given: PartsWanted) -> ShownParts:
    """Let parts of a queue take no more messages, down to the given number; the others get theirs.
    All of a FIFO queue make room for new ones, which get what they have."""
    asked.noted["parts"] = given.parts
    queue = asked.queue(asked.parts[0])
    count = _open(queue) - given.parts
    if count < 0:
        raise Refused(409, f"Queue {queue.name} has {_open(queue)} parts; `split` makes more.")
    if count and queue.settings.fifo:
        queue = await _replaced(context, asked, queue, given.parts)
    elif count:
        others = [part.number for part in queue.parts[1:] if part.is_open]
        queue = await context.catalog.drain_parts(queue, others[-count:])
    return await _shown(context, asked, queue)


async def move_queue(context: OperatorContext, asked: Asked, given: Place) -> ShownParts:
    """Move a part, or an unsplit queue, to another shard; its messages follow."""
    asked.noted["shard"] = given.shard
    queue = asked.queue(asked.parts[0])
    open_parts = [part for part in queue.all_parts() if not part.parts or part.part.is_open]
    chosen = [part for part in open_parts if given.part in (None, part.part_number)]
    if len(chosen) != 1:
        numbers = ", ".join(str(part.part_number) for part in open_parts)
        raise Refused(409, f"Queue {queue.name} has the open parts {numbers}: name one.")
    (part,) = chosen
    if part.shard != given.shard:
        request_id = f"{context.bits128():032x}"
        queue = await move_part(
            context.catalog, context.router, part, given.shard, asked.caller, request_id
        )
    return await _shown(context, asked, queue)


def _open(queue: QueueDefinition) -> int:
    return sum(part.is_open for part in queue.parts) or 1


async def _shown(context: OperatorContext, asked: Asked, queue: QueueDefinition) -> ShownParts:
    request_id = f"{context.bits128():032x}"
    readings = await read_parts(context.router, queue, asked.caller, request_id)
    parts = [_part(each, readings[each.queue_id]) for each in queue.all_parts()]
    return {"name": queue.name, "version": queue.version, "parts": parts}


def _part(definition: QueueDefinition, reading: PartReading | None) -> ShownPart:
    part = definition.part if definition.parts else None
    is_open = part is None or part.is_open
    return {
        "number": 0 if part is None else part.number,
        "queue_id": definition.queue_id,
        "shard": definition.shard,
        "state": "open" if is_open else "draining",
        "home": definition.is_home,
        "visible": None if reading is None else reading.visible,
        "in_flight": None if reading is None else reading.in_flight,
        "delayed": None if reading is None else reading.delayed,
        "waits_for": "its shard to answer" if reading is None else reading.waits_for,
    }


ROUTES = (
    Route("GET", _PATH, GET_QUEUE, list_parts, "fleet parts"),
    Route("POST", _PATH + "/split", CHANGE_PARTS, split_queue, "fleet split"),
    Route("POST", _PATH + "/shrink", CHANGE_PARTS, shrink_queue, "fleet shrink"),
    Route("POST", _PATH + "/move", CHANGE_PARTS, move_queue, "fleet move"),
)
