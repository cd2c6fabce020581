"""Issued ids: no shard serves queues whose ids the catalog could issue again (rule 38).

A new queue with such an id would have the messages of another one. It happens if the catalog is
older than the shards. A single host does not start then. In a cluster etcd was restored from an
older snapshot, which must not stop it: the leader of a shard raises the number above which ids are
issued, before it takes requests. Hosts wait for that before they make queues (`RaisedIds`). It also
has the parts written back that its shard noted, where the records of queues are older (rule 52).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping

import structlog

from auth.caller import Caller
from cluster.catalog.catalog import Catalog
from visibility.contract.errors import ServiceUnavailable
from visibility.contract.model import Request
from visibility.contract.outcomes import Answer
from visibility.rows.row_values import THE_SHARD, NotedParts
from visibility.rules.archive_batches import the_shard
from visibility.rules.queues import ReadQueues
from visibility.state.shard_state import ShardState

_CALLER = Caller("", "", "raised-ids")
_NO_QUEUES = ReadQueues()
"""The cheapest request that a leader decides."""
_REFUSED_S = 60.0
_NAMED = 100
"""Queues that a line of the log names."""


class CatalogOlder(Exception):
    """The shard holds queues that the catalog never issued: the catalog is an older copy."""


class CatalogAway(Exception):
    """The catalog does not answer what a new leader must know: another host may do better."""


def is_for_leaders(request: Request) -> bool:
    """True for the question of `RaisedIds`."""
    return request.queue.queue_id == THE_SHARD and request.operation == _NO_QUEUES


def known_ids(state: ShardState) -> set[int]:
    """The queues that a shard holds, and those that messages are on their way to from it."""
    return state.queues.keys() | state.outbox.by_target.keys()


def noted_ids(state: ShardState) -> set[int]:
    """All parts of the queues whose parts the shard noted, on whatever shards they are."""
    return {queue_id for note in state.noted_parts.values() for queue_id in note.queue_ids}


def check_ids(number: int, queue_ids: Iterable[int], highest_queue_id: int) -> None:
    """Refuse queues of a shard above the last that the catalog issued. Raises CatalogOlder."""
    highest = max(queue_ids, default=0)
    if highest > highest_queue_id:
        raise CatalogOlder(
            f"{_held(number, highest, highest_queue_id)}: it is missing or an older copy"
        )


async def learn_all(catalog: Catalog) -> None:
    """Wait until this host's view is the latest: a new leader decides as its predecessor would
    have. Raises CatalogAway."""
    if not await catalog.caught_up():
        raise CatalogAway("this host's view of the queues lags behind etcd")


async def raise_ids(
    number: int,
    queue_ids: Iterable[int],
    catalog: Catalog,
    log: structlog.stdlib.BoundLogger,
) -> None:
    """Have the ids of a shard's queues count as issued; the view is the latest. Raises
    CatalogAway."""
    issued = catalog.highest_queue_id
    unknown = sorted(queue_id for queue_id in queue_ids if queue_id > issued)
    if not unknown:
        return
    try:
        await catalog.raise_ids(unknown[-1])
    except ServiceUnavailable as error:
        raise CatalogAway(
            f"{_held(number, unknown[-1], issued)}, and that cannot be raised now"
        ) from error
    log.error(
        "queue_ids_raised",
        queues=len(unknown),
        queue_ids=unknown[:_NAMED],
        issued=issued,
        means=f"shard {number} holds queues, or messages on their way to queues, or knows parts of "
        "queues, that etcd does not know: etcd was restored from an older snapshot. No new queue "
        "gets their ids; their messages stay on disk and are not served",
        action="make queues of later than the snapshot again, they are empty; see 'An etcd from "
        "an old snapshot' in the runbook",
    )


class RaisedIds:
    """Asks each shard for an answer, once: only a leader that has raised its ids, and has written
    later parts back, gives one."""

    def __init__(
        self, ask: Callable[[Request], Awaitable[Answer]], times_restored: Callable[[], int]
    ) -> None:
        """`ask` is `PeerRouter.ask_leader`. `times_restored` counts the times that etcd went back:
        since then nobody has answered."""
        self._ask = ask
        self._times_restored = times_restored
        self._restored = times_restored()
        self._answered: set[int] = set()
        """Shards whose leader has answered."""
        self._refused_until_s = 0.0

    def unheard(self, shards: Iterable[int]) -> set[int]:
        """Those of these shards that have not answered."""
        restored = self._times_restored()
        if restored != self._restored:
            self._restored = restored
            self._answered.clear()
        return set(shards) - self._answered

    async def wait(self, shards: Iterable[int]) -> None:
        """Wait for the leaders of these shards that have not answered yet. Raises
        ServiceUnavailable if one does not while the router holds the request."""
        for shard in sorted(self.unheard(shards)):
            await self._hear(shard)

    async def ask_all(self, shards: Iterable[int]) -> None:
        """Ask those that have not answered, once each: whoever changes parts then waits less."""
        asked = map(self._hear, sorted(self.unheard(shards)))
        for answer in await asyncio.gather(*asked, return_exceptions=True):
            if isinstance(answer, BaseException) and not isinstance(answer, ServiceUnavailable):
                raise answer

    async def _hear(self, shard: int) -> None:
        restored = self._times_restored()
        await self._ask(Request(_NO_QUEUES, the_shard(shard), _CALLER, "raised-ids"))
        if self._times_restored() != restored or self._restored != restored:
            raise ServiceUnavailable()  # etcd went back meanwhile: ask all again
        self._answered.add(shard)

    async def wait_for_all(self, shards: Iterable[int]) -> None:
        """The same before parts are changed. Once refused, it is for a minute without a question,
        so that a planner does not wait for a shard that is away with each of its plans."""
        loop, numbers = asyncio.get_running_loop(), set(shards)
        silent = min(self.unheard(numbers), default=None)
        if silent is not None and loop.time() < self._refused_until_s:
            raise ServiceUnavailable(_not_heard(silent))
        try:
            await self.wait(numbers)
        except ServiceUnavailable as error:
            self._refused_until_s = loop.time() + _REFUSED_S
            silent = min(self.unheard(numbers), default=-1)
            raise ServiceUnavailable(_not_heard(silent)) from error


def _not_heard(shard: int) -> str:
    return f"Shard {shard} has not answered yet: parts are changed once each shard has. Try again."


def _held(number: int, queue_id: int, issued: int) -> str:
    return f"shard {number} holds queue {queue_id}, but the catalog has issued ids up to {issued}"


async def write_back(
    number: int,
    noted: Mapping[bytes, NotedParts],
    catalog: Catalog,
    log: structlog.stdlib.BoundLogger,
) -> int:
    """Write back the parts of queues whose records are older than the notes of a shard; the view is
    the latest. Returns the number of these queues. Raises CatalogAway."""
    if not noted:
        return 0
    try:
        written = await catalog.write_back_parts(noted)
    except ServiceUnavailable as error:
        raise CatalogAway(
            f"shard {number} knows later parts of queues than etcd, and cannot write them back now"
        ) from error
    for queue in written:
        log.error(
            "parts_written_back",
            queue=queue.arn,
            parts=[part.part_number for part in queue.all_parts()],
            means=f"etcd was restored from before a change of this queue's parts, which shard "
            f"{number} knows: etcd has them again",
            action="none; what else was changed since the snapshot is to be done again, see 'An "
            "etcd from an old snapshot' in the runbook",
        )
    return len(written)
