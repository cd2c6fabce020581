"""Following: requests whose receipt handles name messages, from part to part.

A message goes from a part that drains to its heir, and from there to the next (see
`queue_parts.way_of`).
So a request asks the part that the handle names. That part answers Moved for a message that it gave
away, or cannot know of, and the request goes on to the heir; only an open part says that a message
is gone. A part answers Departing while the message is on its way, and is asked again. Parts are
never asked side by side: a message that travels could be missed by all.

A batch is asked as one, until a part says that it lacks some message: then it is asked entry by
entry.
"""

from __future__ import annotations

import asyncio
from functools import partial

import msgspec

from cluster.catalog.catalog_records import name_of
from cluster.parts.part_requests import View, gathering, one_by_one
from cluster.shards.router import Router
from visibility.contract.errors import (
    Departing,
    Moved,
    QueueDoesNotExist,
    QueueError,
    ServiceUnavailable,
)
from visibility.contract.model import QueueDefinition, Request
from visibility.contract.outcomes import Answer
from visibility.contract.queue_parts import PARTS_MAX, first_sequence
from visibility.state.waiters import OnAnswer

AGAIN_S = 0.02
"""Pause before a part is asked again for a message that is on its way."""
_AGAIN_S_MAX = 0.5
_PROMPT_MAX = PARTS_MAX
"""Questions without a pause: a way has no more parts. Then views differ for the moment, and each
further pause is twice as long."""
LONGEST_S = 10.0
"""Time after which a request is answered ServiceUnavailable, as one that waits for a leader is."""


class _Followed:
    """A request under way: the id that its requests to parts begin with, and when it gives up, on
    the loop's clock."""

    __slots__ = ("asked", "on_answer", "request_id", "until_s")

    def __init__(self, request_id: str, until_s: float, on_answer: OnAnswer) -> None:
        self.request_id = request_id
        self.until_s = until_s
        self.on_answer = on_answer
        self.asked = 0
        """Questions to further parts."""

    def pause_s(self) -> float:
        """The pause before the next question; 0 for none."""
        self.asked += 1
        late = self.asked - _PROMPT_MAX
        return min(_AGAIN_S_MAX, AGAIN_S * 2.0 ** min(late, 10)) if late > 0 else 0.0


class Following:
    """Those of one process."""

    def __init__(self, router: Router, view: View) -> None:
        self._router = router
        self._view = view
        self._asked = 0

    def submit(self, request: Request, on_answer: OnAnswer) -> None:
        """Ask a part, and go on from there; the request is to that part, see `by_receipts`."""
        until_s = asyncio.get_running_loop().time() + LONGEST_S
        followed = _Followed(request.request_id, until_s, on_answer)
        self._router.submit(request, partial(self._answered, followed, request))

    def _answered(self, followed: _Followed, request: Request, answer: Answer | QueueError) -> None:
        if not isinstance(answer, Moved | Departing | QueueDoesNotExist):
            followed.on_answer(answer)
        elif len(request.parts) > 1:
            self._ask_each(followed, request)
        elif asyncio.get_running_loop().time() >= followed.until_s:
            followed.on_answer(ServiceUnavailable())
        elif isinstance(answer, Departing):
            loop = asyncio.get_running_loop()
            pause_s = max(AGAIN_S, followed.pause_s())
            loop.call_later(pause_s, self._ask, followed, request, request.queue)
        elif pause_s := followed.pause_s():
            loop = asyncio.get_running_loop()
            loop.call_later(pause_s, self._look_and_go_on, followed, request)
        else:
            self._go_on(followed, request, has_looked=False)

    def _look_and_go_on(self, followed: _Followed, request: Request) -> None:
        self._view.when_caught_up(partial(self._go_on, followed, request, has_looked=True))

    def _ask_each(self, followed: _Followed, request: Request) -> None:
        cut = one_by_one(request)
        answered = gathering(request, cut, followed.on_answer)
        for place, each in enumerate(cut):
            one = _Followed(
                f"{followed.request_id}.{place}", followed.until_s, partial(answered, place)
            )
            self._ask(one, each, each.queue)

    def _ask(self, followed: _Followed, request: Request, part: QueueDefinition) -> None:
        """Ask under an id of its own: the shard remembers answers by it."""
        self._asked += 1
        request_id = f"{followed.request_id}:{self._asked}"
        asked = msgspec.structs.replace(request, queue=part, request_id=request_id)
        self._router.submit(asked, partial(self._answered, followed, asked))

    def _go_on(self, followed: _Followed, request: Request, *, has_looked: bool) -> None:
        """Ask the heir of the part that was asked, as soon as this host knows it."""
        queue = self._view.find(name_of(request.queue))
        if queue is None:
            followed.on_answer(QueueDoesNotExist())
            return
        asked = request.queue.part_number
        way = queue.way_of(first_sequence(asked))
        after = way[1:] if way[0].part_number == asked else way
        if after:
            self._ask(followed, request, after[0])
        elif has_looked:
            loop = asyncio.get_running_loop()
            loop.call_later(AGAIN_S, self._ask, followed, request, way[0])
        else:
            self._look_and_go_on(followed, request)
