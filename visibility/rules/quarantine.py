"""Quarantine: turns damage that a decision meets into an event (rule 20); the decision is then
repeated.

Spans are the unit: they count the messages that must exist, so losses are counted exactly. The
readable part of a span is surveyed, and everything missing from it is quarantined at once. Messages
in flight stay until the end of their lease, except those that an operator holds: nothing ends
theirs. In a FIFO queue the group of a lost message is blocked, as it is after a message that is
never deleted: until the lost message would have expired. After a held one, which nobody can release
any more, it goes on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from types import MappingProxyType

import msgspec
from msgspec.structs import replace
from typing_extensions import override

from visibility.contract.model import QueueDefinition
from visibility.contract.stored_message import Lease
from visibility.rows.row_changes import Changes
from visibility.rows.row_codec import DamagedRecord, encode_row
from visibility.rows.row_keys import (
    BLOCKED,
    DELAYED,
    LEVEL_LINE,
    QUARANTINED,
    SPAN_BITS,
    group_key,
    message_key,
    row_key,
    table_range,
)
from visibility.rows.row_places import remove_references
from visibility.rows.row_values import NOWHERE, GroupRow, Quarantined
from visibility.rules.events import Damage, Effects, Event, Notice
from visibility.rules.groups import GroupBook
from visibility.rules.hold_messages import needs_release
from visibility.rules.message_events import LEAST_RETENTION_MS
from visibility.rules.orders import order_of
from visibility.rules.tables import GROUP_KEY, NUMBER_KEY, Table, Tables
from visibility.state import window
from visibility.state.in_flight import trim
from visibility.state.places import leave, uncount
from visibility.state.queue_state import Blocked, Quarantine, QueueState, is_passed_by
from visibility.state.rows import DamagedPlace, MessagesMissing, Rows
from visibility.state.shard_state import ShardState
from visibility.state.stamp import Stamp

NO_ROWS: Mapping[bytes, GroupRow] = MappingProxyType({})
ROWS_MAX = 100_000
"""Rows read by one decision, which takes 0.1 s. A longer queue is rebuilt instead, in a
thread."""
NAMED_MAX = 4_000
"""Messages named by one event, from which on it takes no further span: an Entry stays bounded."""


def quarantine(turn: Effects, error: DamagedRecord | MessagesMissing, now_ms: int) -> None:
    """Quarantine the damage, so that a decision can be repeated.

    Raises the error if that does not help, would hold the event loop, or is not for this shard to
    do.
    """
    state = turn.state
    events = _events_for(state, error, now_ms)
    for event in events:
        turn.do(event)
    queue_id = events[0].queue_id
    definition = state.definitions.queue_of_id(queue_id)
    fields: dict[str, object] = {
        "queue_id": queue_id,
        "queue": "" if definition is None else definition.name,
        "messages_quarantined": state.queue(queue_id).quarantined.messages,
        "reason": str(error),
    }
    turn.notices.append(Notice("damage_found", fields, is_damage=True))


def ask_for_rebuild(turn: Effects, queue_id: int, error: DamagedRecord | MessagesMissing) -> None:
    """Have a queue rebuilt whose damage no event can avoid. Raises the error if another host heals
    it."""
    if is_for_others(turn.state, error):
        raise error
    if isinstance(error, DamagedRecord):
        queue_id = turn.state.rows.queue_of(error)
    turn.damage = Damage(queue_id, str(error))


def _events_for(
    state: ShardState, error: DamagedRecord | MessagesMissing, now_ms: int
) -> tuple[Event, ...]:
    place = _place_of(state, error) if state.quarantines else None
    if place is None:
        raise error
    queue = state.queue(place.queue_id)
    if _rows_to_read(queue, place) > ROWS_MAX:
        raise error
    if place.is_group_row:
        return _recounted(state, queue, place.group)
    if place.group:
        if not order_of(queue).locks_groups or place.group in queue.quarantined.groups:
            raise error
        return _blocking(state, queue, [], [], {place.group}, now_ms)
    leases: list[Lease] = []
    if place.is_delayed:
        return _delayed(state, queue, error, now_ms)
    records, leases = _Spans(state, queue, place, now_ms).survey()
    if not records:
        raise error
    locks = order_of(queue).locks_groups
    groups = {lease.group for lease in leases if locks and not lease.is_held}
    return _blocking(state, queue, records, leases, groups, now_ms)


def is_for_others(state: ShardState, error: Exception) -> bool:
    """True for damage that the rows of another host heal: no event is made of it."""
    return not state.quarantines and isinstance(error, DamagedRecord | MessagesMissing)


def _rows_to_read(queue: QueueState, place: DamagedPlace) -> int:
    """Rows of delayed messages, or of those that wait in groups, from which losses are counted."""
    if place.is_delayed:
        return queue.delayed
    return queue.waiting if order_of(queue).locks_groups or place.is_group_row else 0


def _place_of(state: ShardState, error: DamagedRecord | MessagesMissing) -> DamagedPlace | None:
    if isinstance(error, DamagedRecord):
        return state.rows.place_of(error)
    until = error.sequence + 1 if error.sequence else state.queue(error.queue_id).next_sequence
    return DamagedPlace(error.queue_id, error.sequence, until, is_delayed=error.delayed)


class _Spans:
    """The damaged spans of a queue."""

    def __init__(
        self, state: ShardState, queue: QueueState, place: DamagedPlace, now_ms: int
    ) -> None:
        self._rows = state.rows
        self._queue = queue
        self._place = place
        self._now_ms = now_ms
        self._waiting: dict[int, list[tuple[bytes, int]]] = {}
        """FIFO: (group, sequence) of waiting messages, by span."""
        self._leases: list[Lease] = []

    def survey(self) -> tuple[list[Quarantined], list[Lease]]:
        """The records of spans with more quarantined messages than before, and those messages'
        known leases."""
        queue, place = self._queue, self._place
        first, last = place.sequence >> SPAN_BITS, (place.until - 1) >> SPAN_BITS
        if order_of(queue).locks_groups:
            for group, sequence in self._rows.in_groups(queue.queue_id):
                self._waiting.setdefault(sequence >> SPAN_BITS, []).append((group, sequence))
        spans = sorted({first, *(span for span in queue.spans if first <= span <= last)})
        records: list[Quarantined] = []
        for span in spans:
            record = self._record(span)
            if record is not None:
                records.append(record)
                if len(self._leases) + sum(len(each.damaged) for each in records) >= NAMED_MAX:
                    break  # what is behind is met later
        return records, self._leases

    def _record(self, span: int) -> Quarantined | None:
        queue = self._queue
        begin = span << SPAN_BITS
        until = min(begin + (1 << SPAN_BITS), queue.next_sequence)
        survey = self._rows.survey(queue.queue_id, begin, until)
        sound = {sequence for sequence in survey.groups if sequence not in queue.quarantined}
        received = [
            entry
            for sequence, entry in queue.entries.items()
            if sequence >> SPAN_BITS == span and sequence not in sound
        ]
        leases = [
            entry.lease
            for entry in received
            if not entry.hidden or needs_release(queue, entry.lease)
        ]
        in_flight = len(received) - len(leases)
        for group, sequence in self._waiting.get(span, ()):
            if sequence not in sound:
                leases.append(Lease(sequence, 0, 0, 0, 0, 0, group))
        leases += self._in_levels(begin, until, sound, leases)
        lost = max(len(leases), queue.spans.get(span, 0) - len(sound) - in_flight)
        before = queue.quarantined.spans.get(span) or Quarantined(span, 0, self._now_ms)
        known = {lease.sequence for lease in leases}
        known |= {sequence for sequence, _ in queue.window if sequence >> SPAN_BITS == span}
        damaged = {*before.damaged, *survey.damaged, *(known - sound)}
        gaps = {*before.gaps, *survey.gaps}
        after = Quarantined(
            span,
            before.messages + lost,
            self._now_ms if lost else before.since_ms,
            sorted(damaged),
            sorted(gaps),
        )
        if after == before:
            return None
        self._leases += leases
        return after

    def _in_levels(
        self, first: int, until: int, sound: set[int], known: list[Lease]
    ) -> list[Lease]:
        """Placeholders for lost messages that wait in the lines of levels."""
        queue, found = self._queue, {lease.sequence for lease in known}
        return [
            Lease(sequence, 0, 0, 0, 0, 0, level=level)
            for level in queue.levels
            for named, sequence in self._rows.instants(
                LEVEL_LINE, queue.queue_id, until - first, after=(level, first - 1)
            )
            if named == level and sequence < until and sequence not in {*sound, *found}
        ]


def _delayed(
    state: ShardState, queue: QueueState, error: DamagedRecord | MessagesMissing, now_ms: int
) -> tuple[Event, ...]:
    """The events for lost delayed messages, which are known by their groups only."""
    survey = state.rows.survey_delayed(queue)
    before = queue.quarantined.spans.get(NOWHERE) or Quarantined(NOWHERE, 0, now_ms)
    lost = max(0, queue.delayed - len(survey.groups))
    damaged = sorted({*before.delayed, *survey.damaged})
    if not lost and damaged == before.delayed:
        raise error
    since_ms = now_ms if lost else before.since_ms
    record = Quarantined(NOWHERE, before.messages + lost, since_ms, delayed=damaged)
    left = Counter(survey.groups)
    counted = {
        group: replace(row, delayed=left[group])
        for group, row in state.rows.groups(queue.queue_id)
        if row.delayed > left[group]
    }
    groups = {*counted} if order_of(queue).locks_groups else set()
    return _blocking(state, queue, [record], [], groups, now_ms, counted)


def _blocking(
    state: ShardState,
    queue: QueueState,
    records: list[Quarantined],
    leases: list[Lease],
    groups: set[bytes],
    now_ms: int,
    counted: Mapping[bytes, GroupRow] = NO_ROWS,
) -> tuple[Event, ...]:
    """The events for lost messages, and for groups blocked from now on, some of them `counted`
    anew. Raises DamagedRecord."""
    groups = {group for group in groups if group}
    book = order_of(queue).book(state, queue, {*queue.quarantined.groups, *groups})
    for group, row in counted.items():
        book.recount(group, row)
    for lease in leases:
        if lease.group and lease.sequence not in queue.entries:
            _take_row(state, queue, book, lease.group)
            book.leave(lease.group, lease.sequence)
    for group in sorted(groups):
        _take_row(state, queue, book, group)
        book.settle(group, (), [])
    held = [lease for lease in leases if order_of(queue).locks_groups and lease.is_held]
    for lease in held:
        _take_row(state, queue, book, lease.group)
    book.settle_all(held, ())
    blocked = [BlockedGroup(group, now_ms) for group in sorted(groups)]
    quarantined = MessagesQuarantined(queue.queue_id, records, leases, blocked)
    return (*book.events(), quarantined)


def _take_row(state: ShardState, queue: QueueState, book: GroupBook, group: bytes) -> None:
    try:
        book.row(group)
    except DamagedRecord:
        book.recount(group, _counted(state, queue, group))


def _counted(state: ShardState, queue: QueueState, group: bytes) -> GroupRow:
    """A group's row derived from its line, and the list of groups."""
    rows, queue_id = state.rows, queue.queue_id
    line = [sequence for _, sequence in rows.in_groups(queue_id, group)]
    delayed = rows.survey_delayed(queue).groups.count(group)
    listed = queue.ready_groups.in_order(
        lambda order, limit: rows.ready_groups(queue_id, order, limit)
    )
    order = next((order for order, each in listed if each == group), 0)
    return GroupRow(len(line), min(line, default=0), order if line else 0, delayed)


def _recounted(state: ShardState, queue: QueueState, group: bytes) -> tuple[Event, ...]:
    """Rebuild a damaged row of a group, without loss."""
    book = order_of(queue).book(state, queue)
    row = _counted(state, queue, group)
    book.recount(group, row)
    book.settle(group, (), [])
    return book.events()


# -- messages that return --------------------------------------------------------------------------


def uncovered(queue: QueueState, leases: list[Lease]) -> tuple[Event, ...]:
    """The event after which reads do not skip these places any more: messages return to them.

    They lay between unreadable ones, without a row, while their span was surveyed.
    """
    records: dict[int, Quarantined] = {}
    for lease in leases:
        span, sequence = lease.sequence >> SPAN_BITS, lease.sequence
        record = records.get(span) or queue.quarantined.spans.get(span)
        if record is not None and is_passed_by(record, sequence):
            damaged = [each for each in record.damaged if each != sequence]
            parts = [
                part for first, until in record.gaps for part in _without(first, until, sequence)
            ]
            records[span] = replace(record, damaged=damaged, gaps=parts)
    if not records:
        return ()
    return (MessagesQuarantined(queue.queue_id, list(records.values()), [], []),)


def _without(first: int, until: int, sequence: int) -> list[tuple[int, int]]:
    """The parts of a stretch before and behind a sequence."""
    if not first <= sequence < until:
        return [(first, until)]
    parts = [(first, sequence), (sequence + 1, until)]
    return [(begin, end) for begin, end in parts if begin < end]


# -- the end ---------------------------------------------------------------------------------------


def end_quarantine(
    shard: ShardState, queue: QueueState, definition: QueueDefinition, stamp: Stamp
) -> tuple[tuple[Event, ...], int | None]:
    """See `pulse.Step`. The lost messages would have expired by now; where no instant is known,
    they count as lost from now on."""
    quarantined = queue.quarantined
    if undated := _undated(shard, queue, stamp.now_ms):
        return undated, stamp.now_ms
    retention_ms = definition.settings.retention_ms
    last_ms = stamp.retained_until_ms - retention_ms
    instants = [record.since_ms for record in quarantined.spans.values()]
    instants += [blocked.since_ms for blocked in quarantined.groups.values()]
    later_ms = [since_ms for since_ms in instants if since_ms > last_ms]
    again = max(stamp.now_ms + 1, min(later_ms) + retention_ms) if later_ms else None
    spans = [each for each in quarantined.spans.values() if each.since_ms <= last_ms]
    groups = [name for name, each in quarantined.groups.items() if each.since_ms <= last_ms]
    if not spans and not groups:
        return (), again
    book = order_of(queue).book(shard, queue, quarantined.groups.keys() - set(groups))
    for group in groups:
        book.settle(group, (), [])
    return (QuarantineEnded(queue.queue_id, spans, groups), *book.events()), again


def _undated(shard: ShardState, queue: QueueState, now_ms: int) -> tuple[Event, ...]:
    """The events that give an instant to what a rebuild quarantined without one."""
    quarantined = queue.quarantined
    spans = [
        replace(each, since_ms=now_ms) for each in quarantined.spans.values() if not each.since_ms
    ]
    groups = {name for name, each in quarantined.groups.items() if not each.since_ms}
    if not spans and not groups:
        return ()
    return _blocking(shard, queue, spans, [], groups, now_ms)


# -- events ----------------------------------------------------------------------------------------


class BlockedGroup(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A group of a FIFO queue that lost a message: the others wait until that one would have
    expired."""

    group: bytes
    since_ms: int


class MessagesQuarantined(Event, frozen=True):
    """Damage was found. `spans` replace the earlier records of the same spans.

    `leases` belong to received messages, or are placeholders for those that wait in a FIFO group;
    the other messages waited in a standard queue or, in the span NOWHERE, for the end of their
    delay. `groups` are blocked from now on.
    """

    spans: list[Quarantined]
    leases: list[Lease]
    groups: list[BlockedGroup]

    @override
    def apply(self, shard: ShardState) -> None:
        queue = shard.queue(self.queue_id)
        spans = queue.quarantined.spans
        left = Counter(lease.sequence >> SPAN_BITS for lease in self.leases)
        for lease in self.leases:
            leave(shard, queue, lease)
        for record in self.spans:
            before = spans.get(record.span)
            lost = record.messages - (before.messages if before is not None else 0)
            spans[record.span] = record
            queue.counts.quarantined += lost
            if record.span == NOWHERE:
                queue.delayed -= lost
            elif untouched := lost - left[record.span]:
                queue.waiting -= untouched
                uncount(queue, record.span, untouched)
            shard.plan_pulse(queue, record.since_ms + LEAST_RETENTION_MS)
        if queue.passed:  # some of them may be among the lost
            window.read_again(shard, queue)
        for line in queue.lines:
            damaged = [each[0] for each in line.window if each[0] in queue.quarantined]
            for sequence in damaged:
                window.discard(shard, line, sequence)
        for blocked in self.groups:
            row = queue.groups[blocked.group]
            queue.quarantined.groups[blocked.group] = Blocked(
                blocked.since_ms, row.count, row.delayed
            )
            shard.plan_pulse(queue, blocked.since_ms + LEAST_RETENTION_MS)
        if self.spans:  # the sizes of those that were lost are not known
            queue.size, queue.sized_from = 0, queue.next_sequence
        trim(queue)

    @override
    def record(self, changes: Changes) -> None:
        queue_id = self.queue_id
        for record in self.spans:
            changes.put(row_key(queue_id, QUARANTINED, record.span), encode_row(record))
        remove_references(changes, queue_id, self.leases)
        for blocked in self.groups:
            key = group_key(queue_id, BLOCKED, blocked.group)
            changes.put(key, encode_row(blocked.since_ms))


class QuarantineEnded(Event, frozen=True):
    """The retention of these spans' losses, or of the losses that block these groups, is over: both
    are dropped."""

    spans: list[Quarantined]
    groups: list[bytes]

    @override
    def apply(self, shard: ShardState) -> None:
        quarantined = shard.queue(self.queue_id).quarantined
        for record in self.spans:
            del quarantined.spans[record.span]
        for group in self.groups:
            del quarantined.groups[group]

    @override
    def record(self, changes: Changes) -> None:
        queue_id = self.queue_id
        for record in self.spans:
            changes.delete(row_key(queue_id, QUARANTINED, record.span))
            for sequence in record.damaged:
                changes.delete(message_key(queue_id, sequence))
            for first, until in record.gaps:
                changes.delete_range(message_key(queue_id, first), message_key(queue_id, until))
            table = table_range(queue_id, DELAYED)[0]
            for begin, end in record.delayed:
                changes.delete_range(table + begin, table + end)
        for group in self.groups:
            changes.delete(group_key(queue_id, BLOCKED, group))


# -- the tables ------------------------------------------------------------------------------------


def quarantine_in(rows: Rows, queue_id: int) -> Quarantine:
    """The quarantine of a queue as its rows tell it. Raises DamagedRecord."""
    spans = [record for _, record in LOST.read(rows.store, queue_id)]
    groups = {}
    for key, since_ms in BLOCKED_GROUPS.read(rows.store, queue_id):
        row = rows.group(queue_id, key[9:]) or GroupRow()
        groups[key[9:]] = Blocked(since_ms, row.count, row.delayed)
    return Quarantine(spans, groups)


def _load(rows: Rows, queue: QueueState, leases: list[Lease]) -> None:
    queue.quarantined = quarantine_in(rows, queue.queue_id)


LOST = Table(QUARANTINED, "quarantined", NUMBER_KEY, Quarantined, load=_load)
BLOCKED_GROUPS = Table(BLOCKED, "blocked group", GROUP_KEY, int)
TABLES: Tables = (LOST, BLOCKED_GROUPS)
