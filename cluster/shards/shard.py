"""Shard: a hash slice of queues, as the rest of the service sees it.

Its life is a `Tenure`; while this host leads, a `Lead` decides its requests.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Container, Iterable

import structlog

from cluster.shards.followed import OnRows
from cluster.shards.lead import ShardParts
from cluster.shards.shard_report import (
    News,
    OnNews,
    Phase,
    QueueReport,
    ShardReport,
    TimesReport,
    archive_report,
    queue_reports,
    times_reports,
)
from cluster.shards.tenure import Tenure
from cluster.shards.turn_sample import QueueShare, TurnSample
from visibility.contract.model import QueueCounters, Request
from visibility.contract.move_task import MoveTask
from visibility.rows.row_changes import Ops
from visibility.state.waiters import OnAnswer, Room, Ticket


class Shard:
    """Belongs to the event loop's thread."""

    def __init__(self, number: int, parts: ShardParts) -> None:
        self.number = number
        self._clock = parts.clock
        self._listeners: list[OnNews] = []
        self._log = structlog.get_logger("shard")
        self._tenure = Tenure(number, parts, self._report)

    async def start(self, highest_queue_id: int | None = None) -> None:
        """Open the store, load memory, finish purges that a crash interrupted.

        Over a replicated store the rest follows when this host is to lead. `highest_queue_id`: the
        last that the catalog issued. Raises StoreFailed, DamagedRecord, CatalogOlder.
        """
        await self._tenure.start(highest_queue_id)

    def end_long_polls(self) -> None:
        """Answer every parked receive now, empty, and park no more: the node is stopping."""
        self._tenure.end_long_polls()

    async def stop(self) -> None:
        """Finish the submitted requests, then close the store. Raises StoreFailed."""
        await self._tenure.stop()

    # -- requests ----------------------------------------------------------------------------------

    def submit(
        self, request: Request, on_answer: OnAnswer, age_ms: int = 0, room: Room | None = None
    ) -> Ticket:
        """Have a request decided; `on_answer` is called once, later, when its outcome is
        committed. `age_ms` and `room`: see `Ticket`."""
        lead = self._tenure.lead
        if lead is not None:
            return lead.submit(request, on_answer, age_ms, room)
        ticket = Ticket(request, on_answer, age_ms=age_ms, room=room)
        refusal = self._tenure.undecided()
        asyncio.get_running_loop().call_soon(on_answer, refusal)
        return ticket

    def cancel(self, ticket: Ticket) -> bool:
        """Remove a parked receive whose client hung up. Anything else runs its course: False."""
        ticket.is_cancelled = True
        return self._tenure.state.waits.remove(ticket.number) is not None

    # -- what others may look into -----------------------------------------------------------------

    def subscribe(self, on_news: OnNews) -> None:
        """Have the shard's news told, from now on."""
        self._listeners.append(on_news)

    def follow(self, queue_ids: Collection[int], on_rows: OnRows) -> None:
        """Have the row changes told of Entries that change one of these queues, instead of those
        followed before. `News.LEADS` says that some may have been missed."""

        def tell(ops: Ops) -> None:
            try:
                on_rows(ops)
            except Exception:  # a bug, which must not stop the shard
                self._log.exception("rows_not_followed", shard=self.number)

        self._tenure.followed.follow(queue_ids, tell)

    def _report(self, news: News) -> None:
        for listener in self._listeners:
            try:
                listener(self.number, news)
            except Exception:  # a bug, which must not stop the shard
                self._log.exception("news_failed", shard=self.number)

    @property
    def phase(self) -> Phase:
        """See `Phase`."""
        return self._tenure.phase

    @property
    def ready(self) -> bool:
        """True while requests are decided here; else they are answered ServiceUnavailable."""
        return self._tenure.lead is not None

    def report(self) -> ShardReport:
        """The shard's present state, without its queues."""
        tenure, state = self._tenure, self._tenure.state
        return ShardReport(
            number=self.number,
            phase=tenure.phase,
            loaded_at_ms=tenure.loaded_at_ms,
            parked=len(state.waits),
            failures=tenure.failures,
            trusted_ms=self._clock.trusted_ms(self._clock.now_ms()),
            turn_s=tenure.times.seconds.report(),
            turn_requests=tenure.times.requests.report(),
            archive=archive_report(state.archive),
            outbox=len(state.outbox.departures),
            outbox_since_ms=state.outbox.since_ms,
        )

    def departs_to(self) -> set[int]:
        """The shards for which messages are in the outbox. O(those messages)."""
        return {each.to_shard for each in self._tenure.state.outbox.departures.values()}

    def locking(self) -> list[int]:
        """Ids of the queues of which groups are locked."""
        state = self._tenure.state
        return [each for each in state.locking if each in state.queues]

    def sharing(self) -> dict[int, MoveTask]:
        """The move tasks of which several parts do shares, by the id of their queue or part."""
        state = self._tenure.state
        tasks = {
            each: state.queues[each].active_task for each in state.sharing.keys() & state.queues
        }
        return {each: task for each, task in tasks.items() if task is not None and task.is_shared}

    def counters(self) -> dict[int, QueueCounters]:
        """Counters by id of the queues that hold or held messages."""
        return {queue.queue_id: queue.counters() for queue in self._tenure.state.queues.values()}

    def queues(
        self, queue_ids: Iterable[int], detailed_ids: Container[int] = ()
    ) -> list[QueueReport]:
        """Report these queues, without those that never held a message; details may read rows."""
        looked_into = detailed_ids if self.ready else ()
        return queue_reports(self._tenure.state, queue_ids, looked_into, self._clock.now_ms())

    def times_in_queues(self, queue_ids: Iterable[int]) -> list[TimesReport]:
        """Report these queues and the times that deleted messages spent there."""
        return times_reports(self._tenure.state, queue_ids)

    def take_sample(self) -> dict[int, QueueShare]:
        """The queues of the Turns since the last call, as a sample; the first call begins it."""
        times = self._tenure.times
        if times.sample is None:
            times.sample = TurnSample()
        return times.sample.take()

    def limit_archive(self, size_max: int) -> None:
        """Hand nothing over to the archive from now on above `size_max` bytes on disk."""
        self._tenure.state.archive.size_max = size_max
