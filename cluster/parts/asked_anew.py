"""Questions about a whole queue that go to its parts, of which this process may not have the latest
news."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import msgspec

from cluster.catalog.catalog_records import name_of
from cluster.parts.part_requests import View
from visibility.contract.errors import Moved, QueueDoesNotExist, ServiceUnavailable
from visibility.contract.model import QueueDefinition, Request

_ROUNDS_MAX = 3
"""Times that it is asked, while the queue's parts change."""

_Answer = TypeVar("_Answer")


async def asked_anew(
    view: View, request: Request, ask: Callable[[Request], Awaitable[_Answer]]
) -> _Answer:
    """The answer to the request, which is asked again with the parts of now if one of them was
    gone. Raises QueueError, QueueDoesNotExist only if the queue is gone."""
    for _ in range(_ROUNDS_MAX):
        try:
            return await ask(request)
        except (Moved, QueueDoesNotExist):
            queue = await later_than(view, request.queue)
            request = msgspec.structs.replace(request, queue=queue)
    raise ServiceUnavailable()


async def later_than(view: View, known: QueueDefinition) -> QueueDefinition:
    """The queue as it is shown, once that may be later than this. Raises QueueDoesNotExist."""
    queue = view.find(name_of(known))
    if queue is None or queue is known:
        is_caught_up = asyncio.Event()
        view.when_caught_up(is_caught_up.set)
        await is_caught_up.wait()
        queue = view.find(name_of(known))
    if queue is None:
        raise QueueDoesNotExist()
    return queue
