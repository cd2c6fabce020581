"""History: the metrics of this host's queues over time, in memory, from a sample each minute.

As on AWS, a queue has points while it is active: while it holds messages, and for six hours after
the last of them or the last call that sent, received or deleted one. History is kept by name, so a
purge or a queue that is made anew continues it. Of a cluster's hosts, the one that leads a queue
has its states, and each the requests that it answered. A `Recorder` stores each minute of all
queues; a start takes the last hours from it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import NamedTuple

from cluster.catalog.catalog_records import QueueName
from cluster.catalog.queue_view import QueueView
from sqs_api.admin.queue_metrics import fullest
from sqs_api.admin.queue_samples import QueueSample, QueueSamples
from sqs_api.cloudwatch.metric_table import ACTIVE, GAUGES, KEPT_COUNTS
from sqs_api.cloudwatch.recorder import Recorder
from sqs_api.cloudwatch.series import HOURS_KEPT, MINUTES_KEPT, Points, Series
from sqs_api.cloudwatch.stored_hours import COLUMNS, Minutes, Values, values_of
from sqs_api.periodic import in_slices
from visibility.contract.model import QueueDefinition

HISTORY_CHECK_S = 1.0
"""Interval at which the end of a minute is looked for."""
_ACTIVE_MINUTES = 6 * 60
_SLICE = 50
"""Queues recorded before other work may run."""
_CONTINUES = [row.continues for row in KEPT_COUNTS.values()]


class _Kept:
    """The history of one queue."""

    __slots__ = ("active_minute", "series")

    def __init__(self) -> None:
        self.active_minute = 0
        """The last minute in which it held messages or something was done to it."""
        self.series: dict[str, Series] = {}
        """By metric, and ACTIVE."""

    def is_active(self, minute: int) -> bool:
        """True if the queue has points in a minute."""
        return self.active_minute >= minute - _ACTIVE_MINUTES

    def add(self, metric: str, minute: int, value: float) -> None:
        """Add a point, later than those of the metric before."""
        self.series.setdefault(metric, Series()).add(minute, value)


class _Counted(NamedTuple):
    """Counts of a queue by metric. A purge changes its id, not the time of its creation."""

    queue_id: int
    created_at_ms: int
    counts: tuple[int, ...]
    """In the order of KEPT_COUNTS."""


class History:
    """The minutes of one process."""

    def __init__(
        self,
        queues: QueueView,
        samples: QueueSamples,
        wall_s: Callable[[], float],
        queues_max: int,
        recorder: Recorder | None = None,
    ) -> None:
        """`queues_max`: number of queues with a history in memory; the idlest gives way to a new
        one."""
        self._queues = queues
        self._samples = samples
        self._wall_s = wall_s
        self._queues_max = queues_max
        self._recorder = recorder
        self._is_restored = recorder is None
        self._minute = self.minute
        """The minute under way at the last look."""
        self._kept: dict[QueueName, _Kept] = {}
        self._full_minute = 0
        """The last minute in which every queue with a history was active."""
        self._before: dict[QueueName, _Counted] = {}
        """Counts at the end of the last minute."""

    @property
    def minute(self) -> int:
        """The minute of now, since 1970."""
        return int(self._wall_s() // 60)

    async def look(self) -> None:
        """Take a sample once a minute is over; to be called each second."""
        if not self._is_restored:
            await self._restore()
        ended, now = self._minute, self.minute
        if now <= ended:
            self._minute = now  # the clock was set back
            return
        await self._take(ended)
        self._minute = now
        self._forget(ended)

    async def stop(self) -> None:
        """Store the minute under way so far."""
        await self._take(self._minute)

    async def _take(self, ended: int) -> None:
        """Record a minute of all queues."""
        counts: dict[QueueName, _Counted] = {}
        stored: dict[QueueName, Values] = {}
        queues = list(self._queues)
        new = [queue for queue in queues if _name_of(queue) not in self._kept]
        passed_over = {queue.queue_id for queue in new} - self._fullest(new)
        read = await self._read(queues, passed_over)
        for number, (queue, sample) in enumerate(read, 1):
            name, counted = _name_of(queue), _counts(sample)
            counts[name] = _Counted(queue.queue_id, queue.created_at_ms, counted)
            if name in self._kept or sample.report.stored or any(counted):
                values = self._values(queue, sample)
                self._record(ended, name, values, is_led=sample.is_led)
                if whole := values_of(values):
                    stored[name] = whole
            if number % _SLICE == 0:
                await asyncio.sleep(0)
        self._before = counts
        if self._recorder is not None:
            self._recorder.write(ended, stored)

    async def _restore(self) -> None:
        """Take the last hours of the queues that were active last from what is stored."""
        self._is_restored = True
        assert self._recorder is not None
        begin = self._minute - MINUTES_KEPT + 1
        names = await self._recorder.latest(begin // 60, self._queues_max)
        async for some in in_slices(names, _SLICE):
            for name, minutes in (await self._recorder.read(some, begin, self._minute)).items():
                if minutes and name not in self._kept:
                    self._kept[name] = _restored(minutes)
                await asyncio.sleep(0)

    def _fullest(self, queues: list[QueueDefinition]) -> set[int]:
        return fullest(queues, self._samples.depths(), self._queues_max)

    async def _read(
        self, queues: list[QueueDefinition], without_details: Collection[int] = ()
    ) -> Iterator[tuple[QueueDefinition, QueueSample]]:
        """Queues with their samples; those that hold messages have ages and groups."""
        detailed = {
            queue_id
            for queue_id, depth in self._samples.depths().items()
            if depth and queue_id not in without_details
        }
        by_id = {queue.queue_id: queue for queue in queues}
        samples = await self._samples.read(queues, detailed)
        return ((by_id[sample.queue_id], sample) for sample in samples)

    def _record(
        self, minute: int, name: QueueName, values: dict[str, float], *, is_led: bool
    ) -> None:
        kept = self._kept.get(name)
        if any(values.values()):
            kept = kept or self._make_room(name, minute)
            if kept is not None:
                kept.active_minute = minute
        if kept is None or not kept.is_active(minute):
            return
        if is_led:
            kept.add(ACTIVE, minute, 1.0)
        for metric, value in values.items():
            if value:
                kept.add(metric, minute, value)

    def _values(self, queue: QueueDefinition, sample: QueueSample) -> dict[str, float]:
        """The metrics of the minute that ends with the sample."""
        now_ms = self._wall_s() * 1000
        values = {metric: float(row.value(sample, now_ms)) for metric, row in GAUGES.items()}
        before = self._before.get(_name_of(queue))
        for place, (metric, total) in enumerate(zip(KEPT_COUNTS, _counts(sample), strict=True)):
            since = 0 if before is None else _since(place, before, queue)
            # A shard that was loaded anew counts from zero.
            values[metric] = float(total - since if total >= since else total)
        return values

    def _make_room(self, name: QueueName, minute: int) -> _Kept | None:
        """A new queue's place; None if all others were active in this minute."""
        if len(self._kept) >= self._queues_max:
            if self._full_minute == minute:
                return None
            idlest = min(self._kept, key=lambda each: self._kept[each].active_minute, default=None)
            if idlest is None or self._kept[idlest].active_minute >= minute:
                self._full_minute = minute
                return None
            del self._kept[idlest]
        made = self._kept[name] = _Kept()
        return made

    def _forget(self, minute: int) -> None:
        for name, kept in list(self._kept.items()):
            if kept.active_minute < minute - HOURS_KEPT * 60:
                del self._kept[name]

    # -- reading -----------------------------------------------------------------------------------

    def names(self, account: str, region: str, since: int) -> set[str]:
        """Names of the queues with points since a minute, or that will have some."""
        kept = {
            name
            for (owner, place, name), kept in self._kept.items()
            if (owner, place) == (account, region) and kept.active_minute >= since
        }
        depths = self._samples.depths()
        return kept | {
            queue.name
            for queue in self._queues
            if (queue.account, queue.region) == (account, region) and queue.queue_id in depths
        }

    async def points(
        self,
        wanted: Mapping[QueueName, Iterable[str]],
        begin: int,
        end: int,
        *,
        with_hours: bool,
    ) -> dict[QueueName, dict[str, Points]]:
        """The points of each queue's metrics from one minute to before another, with the minute
        under way so far."""
        found: dict[QueueName, dict[str, Points]] = {}
        asked = {name: [ACTIVE, *metrics] for name, metrics in wanted.items()}
        for name, metrics in asked.items():
            kept = self._kept.get(name)
            series = {} if kept is None else kept.series
            found[name] = {
                metric: series[metric].points(begin, end, with_hours=with_hours)
                for metric in metrics
                if metric in series
            }
            await asyncio.sleep(0)
        if begin <= self._minute < end:
            await self._add_present(found, asked)
        return found

    async def _add_present(
        self, found: dict[QueueName, dict[str, Points]], asked: Mapping[QueueName, list[str]]
    ) -> None:
        named = [queue for name in found if (queue := self._queues.find(name)) is not None]
        for queue, sample in await self._read(named):
            name = _name_of(queue)
            values, kept = self._values(queue, sample), self._kept.get(name)
            is_active = kept is not None and kept.is_active(self._minute)
            if sample.is_led and (is_active or any(values.values())):
                values[ACTIVE] = 1.0
            for metric in asked[name]:
                if values.get(metric):
                    points = found[name].setdefault(metric, Points([], []))
                    points.minutes.append((self._minute, values[metric]))


def _restored(minutes: Minutes) -> _Kept:
    kept = _Kept()
    for minute, values in sorted(minutes.items()):
        kept.active_minute = minute
        kept.add(ACTIVE, minute, 1.0)
        for column, value in values.items():
            kept.add(COLUMNS[column], minute, value)
    return kept


def _name_of(queue: QueueDefinition) -> QueueName:
    return queue.account, queue.region, queue.name


def _counts(sample: QueueSample) -> tuple[int, ...]:
    return tuple(row.total(sample) for row in KEPT_COUNTS.values())


def _since(place: int, before: _Counted, queue: QueueDefinition) -> int:
    """The count to which the queue added: its own, or the purged one's that it continues."""
    is_same = before.queue_id == queue.queue_id
    is_purged = before.created_at_ms == queue.created_at_ms and _CONTINUES[place]
    return before.counts[place] if is_same or is_purged else 0
