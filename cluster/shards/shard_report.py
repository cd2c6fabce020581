"""Reports: the public view of a shard. Frozen plain data that could be sent to another process.

A shard makes them on request. Its memory (`visibility/state`) does not leave `cluster/shards`.
Beside them a shard tells its news, and `Followed` the row changes of some queues.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from enum import Enum, StrEnum
from functools import reduce
from operator import attrgetter
from typing import NamedTuple

import msgspec

from storage.histogram import HistogramReport
from visibility.contract.move_task import MoveTask, whole
from visibility.rows.row_changes import Ops
from visibility.rows.row_codec import DamagedRecord
from visibility.state.ages import OldestMessages, oldest_messages
from visibility.state.archive_state import ArchiveState
from visibility.state.gauges import GroupGauges, group_gauges
from visibility.state.queue_state import QueueState
from visibility.state.shard_state import ShardState


class Phase(StrEnum):
    """The phase of a shard: only a LEADING one decides requests, the others refuse them."""

    LOADING = "loading"
    FOLLOWING = "following"
    """Another host leads, or soon will; also while memory is loaded to take the lead."""
    LEADING = "leading"
    FAILED = "failed"
    STOPPED = "stopped"


class News(Enum):
    """The news of a shard, which those who `subscribe` to it are told."""

    LEADS = "leads"
    """This host begins to decide the shard's requests."""
    DEPARTURES = "departures"
    """Messages left for other shards."""
    LOCKS = "locks"
    """Groups wait for earlier parts of their queue."""


OnNews = Callable[[int, News], None]
"""Called with the shard's number, on the event loop."""


class ArchiveLimits(NamedTuple):
    """The limits on the messages that a shard keeps for the archive."""

    size_max: int
    """Bytes on disk that may wait for the archive."""
    retains: bool
    """True if messages that find no room there stay in their queues instead of being discarded."""


class ArchiveReport(msgspec.Struct, frozen=True):
    """The messages of a shard that wait for the archive; see `ArchiveState`."""

    source: str
    sealed: int
    """The highest batch that was sealed."""
    archived: int
    """The highest batch that is archived for good."""
    waiting_batches: int
    """Batches that are sealed and not archived."""
    first_position: int
    messages: int
    """In batches and in none yet, as `size`."""
    size: int
    size_max: int
    has_open: bool
    open_size: int
    open_since_ms: int
    waiting_since_ms: int
    """When the oldest waiting batch was sealed or begun; 0 if nothing waits."""
    handed_over: int
    discarded: int


class ShardReport(msgspec.Struct, frozen=True):
    """A shard without its queues: its cost does not depend on how much the shard holds."""

    number: int
    phase: Phase
    loaded_at_ms: int
    """When the shard was loaded, by its clock: counts of its queues begin there."""
    parked: int
    """Long polls that wait for a message."""
    failures: int
    """Failures of the store."""
    trusted_ms: int
    """The time that retention acts on while a leap of the clock is not trusted yet, else 0."""
    turn_s: HistogramReport
    """Time that deciding took, without the disk."""
    turn_requests: HistogramReport
    archive: ArchiveReport
    outbox: int = 0
    """Messages on their way to other shards, and questions about transactions."""
    outbox_since_ms: int = 0
    """When the oldest of them left its queue or was asked, 0 for none; one that waits for a deleted
    queue does not count."""
    outbox_waiting: int = 0
    """Sends of transactions that wait for a deleted queue, which may be restored."""
    outbox_waiting_share: float = 0.0
    """The part of their own room that these take; above 1 they take that of others."""
    prepared: int = 0
    """Messages that stay in flight until another shard has decided a transaction."""
    parts_written_back: int = 0
    """Queues whose parts in etcd were older than those that the shard noted."""

    @property
    def ready(self) -> bool:
        """True if requests are decided."""
        return self.phase is Phase.LEADING


class QueueReport(msgspec.Struct, frozen=True):
    """A queue that holds or held messages; counts are those of
    `visibility.state.queue_state.Counts`."""

    queue_id: int
    visible: int
    in_flight: int
    delayed: int
    quarantined: int
    """Messages that are stored and cannot be served; in no other count."""
    sent: int
    sent_bytes: int
    received: int
    deleted: int
    expired: int
    dropped: int
    purged: int
    moved_in: int
    moved_out: int
    late: int
    oldest: OldestMessages | None = None
    """None if it was not requested, the shard is not ready, or rows cannot be read."""
    groups: GroupGauges | None = None
    """None for the same reasons, and for a queue with neither groups in flight nor noisy ones."""
    deaths: dict[str, int] = {}
    clocks_ahead: dict[str, int] = {}
    rescued: int = 0
    """Messages that went to the dead-letter queue when the queue was deleted."""

    @property
    def stored(self) -> int:
        """Messages, whatever their state."""
        return self.visible + self.in_flight + self.delayed


class TimesReport(NamedTuple):
    """A queue with the times that deleted messages spent in it."""

    queue: QueueReport
    times: dict[int, int]
    """Messages by `counts.bucket_of` their time."""


GAUGES = ("visible", "in_flight", "delayed", "quarantined")
"""The fields of a QueueReport that count messages as they are now."""
COUNTS = (
    "sent",
    "sent_bytes",
    "received",
    "deleted",
    "expired",
    "dropped",
    "purged",
    "moved_in",
    "moved_out",
    "late",
)
"""The fields of a QueueReport that count from the time the shard was loaded."""


def archive_report(archive: ArchiveState) -> ArchiveReport:
    """Report the messages that wait for the archive."""
    return ArchiveReport(
        source=archive.source,
        sealed=archive.next_batch - 1,
        archived=archive.archived,
        waiting_batches=len(archive.batches),
        first_position=archive.first_position,
        messages=archive.messages,
        size=archive.size,
        size_max=archive.size_max,
        has_open=archive.has_open,
        open_size=archive.open_size,
        open_since_ms=archive.open_since_ms,
        waiting_since_ms=_waiting_since_ms(archive),
        handed_over=archive.handed_over,
        discarded=archive.discarded,
    )


def _waiting_since_ms(archive: ArchiveState) -> int:
    if archive.batches:  # in order of time, and before the open ones
        return next(iter(archive.batches.values())).sealed_at_ms
    return archive.open_since_ms if archive.has_open else 0


def queue_reports(
    state: ShardState, queue_ids: Iterable[int], detailed_ids: Container[int], now_ms: int
) -> list[QueueReport]:
    """Report those of the queues that hold or held messages.

    Only for `detailed_ids` oldest messages and groups are looked up, which may read rows.
    """
    return [
        _detailed(state, queue, now_ms) if queue.queue_id in detailed_ids else _report(queue)
        for queue in _known(state, queue_ids)
    ]


def tasks_since(
    state: ShardState, queue_ids: Iterable[int], since_ms: int
) -> dict[int, list[MoveTask]]:
    """The move tasks of these queues that are not over, or ended at or after an instant, by queue.
    One of a queue with several parts is its home's, with the sums of all."""
    found: dict[int, list[MoveTask]] = {}
    for queue in _known(state, queue_ids):
        for task in queue.tasks.values():
            if not task.place and (task.is_active or task.ended_at_ms >= since_ms):
                found.setdefault(queue.queue_id, []).append(whole(task))
    return found


def times_reports(state: ShardState, queue_ids: Iterable[int]) -> list[TimesReport]:
    """Report those of the queues that hold or held messages, with times spent there."""
    return [
        TimesReport(_report(queue), dict(queue.times_in_queue))
        for queue in _known(state, queue_ids)
    ]


def summed_reports(reports: Iterable[QueueReport], whole: Mapping[int, int]) -> list[QueueReport]:
    """The reports of queues: those of its parts added up. `whole` is the queue of each id."""
    found: dict[int, QueueReport] = {}
    for report in reports:
        queue_id = whole[report.queue_id]
        before = found.get(queue_id)
        found[queue_id] = report if before is None else add_reports((before, report))
    return [
        report
        if report.queue_id == queue_id
        else msgspec.structs.replace(report, queue_id=queue_id)
        for queue_id, report in found.items()
    ]


def add_reports(reports: Sequence[QueueReport]) -> QueueReport:
    """The sum of some, under the first one's id, with the ages of the oldest messages, and the
    groups of those that know them. Its cost for each report is small: a page adds up thousands."""
    sums = {name: sum(map(attrgetter(name), reports)) for name in (*GAUGES, *COUNTS, "rescued")}
    return QueueReport(
        reports[0].queue_id,
        oldest=reduce(_older, (each.oldest for each in reports)),
        groups=reduce(_together, (each.groups for each in reports)),
        deaths=_added(each.deaths for each in reports),
        clocks_ahead=_added(each.clocks_ahead for each in reports),
        **sums,
    )


def _added(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    total = Counter[str]()
    for each in filter(None, counts):
        total.update(each)
    return dict(total)


def _older(one: OldestMessages | None, other: OldestMessages | None) -> OldestMessages | None:
    if one is None or other is None:
        return one or other
    return OldestMessages(
        _earlier(one.stored_ms, other.stored_ms),
        _earlier(one.receivable_ms, other.receivable_ms),
        _earlier(one.unspent_ms, other.unspent_ms),
    )


def _earlier(one_ms: int, other_ms: int) -> int:
    return min(filter(None, (one_ms, other_ms)), default=0)


def _together(one: GroupGauges | None, other: GroupGauges | None) -> GroupGauges | None:
    """Groups in flight and noisy ones may be in both: the sum is an upper bound of them."""
    if one is None or other is None:
        return one or other
    return GroupGauges(
        one.groups_in_flight + other.groups_in_flight,
        one.noisy_groups + other.noisy_groups,
        one.visible_in_quiet_groups + other.visible_in_quiet_groups,
        one.in_flight_in_quiet_groups + other.in_flight_in_quiet_groups,
        one.delayed_in_quiet_groups + other.delayed_in_quiet_groups,
        _earlier(one.oldest_quiet_sent_ms, other.oldest_quiet_sent_ms),
    )


def _known(state: ShardState, queue_ids: Iterable[int]) -> Iterable[QueueState]:
    return filter(None, map(state.queues.get, queue_ids))


def _report(queue: QueueState) -> QueueReport:
    counts, shown = queue.counts, queue.counters()
    return QueueReport(
        queue.queue_id,
        shown.visible,
        shown.in_flight,
        shown.delayed,
        queue.quarantined.messages,
        counts.sent,
        counts.sent_bytes,
        counts.received,
        counts.deleted,
        counts.expired,
        counts.dropped,
        counts.purged,
        counts.moved_in,
        counts.moved_out,
        deaths=dict(counts.deaths),
        rescued=queue.rescued,
        late=counts.late,
        clocks_ahead=dict(counts.clocks_ahead),
    )


def _detailed(state: ShardState, queue: QueueState, now_ms: int) -> QueueReport:
    oldest, groups = _oldest(state, queue), _groups(state, queue, now_ms)
    return msgspec.structs.replace(_report(queue), oldest=oldest, groups=groups)


def _oldest(state: ShardState, queue: QueueState) -> OldestMessages | None:
    try:
        return oldest_messages(state, queue)
    except DamagedRecord:
        return None


def _groups(state: ShardState, queue: QueueState, now_ms: int) -> GroupGauges | None:
    if not (queue.in_flight_by_group or queue.fairness.noisy):
        return None
    try:
        return group_gauges(state, queue, now_ms)
    except DamagedRecord:
        return None


OnRows = Callable[[Ops], None]
"""Takes the row changes of an Entry, of all its queues. It handles its own errors."""


class Followed:
    """The queues of a shard whose message rows somebody follows, who is told what committed
    Entries changed, in order. Entries of other queues cost one look at their queues' ids."""

    def __init__(self) -> None:
        self._queue_ids: frozenset[int] = frozenset()
        self._on_rows: OnRows | None = None

    def follow(self, queue_ids: Collection[int], on_rows: OnRows) -> None:
        """Tell of these queues and no others, from the next Turn on."""
        self._queue_ids, self._on_rows = frozenset(queue_ids), on_rows

    def concerns(self, queue_ids: Collection[int]) -> bool:
        """True if one of the queues is followed."""
        return bool(self._queue_ids) and not self._queue_ids.isdisjoint(queue_ids)

    def tell(self, ops: Ops) -> None:
        """Tell of a committed Entry."""
        if self._on_rows is not None:
            self._on_rows(ops)
