"""The order of standard queues with priority: by level, in each level the oldest first.

Weighted: level p gets p + 1 shares of what is received, so that none starves. A level that had
nothing waiting does not save its shares. Strict: the highest level first, and behind all levels
what was received three times, so that a message that always fails keeps nothing waiting.

While a group is noisy, quiet groups go first, by level among themselves. Each level has an index of
its waiting messages, so that a receive finds its next ones behind any number of others.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from heapq import merge
from itertools import islice

from typing_extensions import override

from visibility.contract.priority import LEVELS, priority_of
from visibility.contract.stored_message import Lease, StoredMessage
from visibility.rows.row_changes import Changes
from visibility.rows.row_codec import DamagedRecord
from visibility.rows.row_keys import LEVEL_LINE
from visibility.rules.events import Event
from visibility.rules.fair_order import PAGE, QUIET_GROUPS_MAX, Fair, is_unfair, line_of
from visibility.rules.groups import GroupBook
from visibility.rules.order import Candidates, Fate, Taking
from visibility.rules.retention import PASSED_MAX
from visibility.rules.standard_order import without_room
from visibility.state import window
from visibility.state.queue_state import Level, QueueState
from visibility.state.shard_state import ShardState

_Candidate = tuple[int, StoredMessage | None, Lease | None]
_FULL_ROUND = 2520
"""Divisible by each number of shares."""
_LATEST = -1
"""Key of the use at which the latest message was taken, beside those of the priorities."""
_NOISY_PASSED_MAX = 100
"""Messages of noisy groups that are passed by in a level to find those of quiet ones; these are
also found by their groups, as in any fair queue."""


class ByPriority(Fair):
    """The order of a queue with priorities. Without the index of levels, if that is damaged, it is
    `Fair`."""

    def __init__(self, *, is_strict: bool) -> None:
        self._is_strict = is_strict

    @override
    def choose(self, taking: Taking) -> tuple[Event, ...]:
        queue = taking.queue
        if queue.has_bad_levels:
            return super().choose(taking)
        if taking.limit <= 0 and taking.reserved <= 0:
            return without_room(taking)
        if not queue.is_by_level:
            window.read_by_level(taking.shard, queue, is_by_level=True)
        try:
            if taking.limit <= 0:
                return self._choose_highest(taking)
            return self._choose_by_level(taking)
        except DamagedRecord as damage:
            queue.has_bad_levels = damage.key[8:9] == LEVEL_LINE
            raise

    @override
    def first_to_go(self, shard: ShardState, queue: QueueState, book: GroupBook) -> Candidates:
        """The oldest of the lowest priority."""
        if queue.has_bad_levels:
            yield from super().first_to_go(shard, queue, book)
            return
        if not queue.is_by_level:
            window.read_by_level(shard, queue, is_by_level=True)
        streams = self._streams(shard, queue)
        for rank in sorted(streams, reverse=True):
            yield from streams[rank]

    def _choose_by_level(self, taking: Taking) -> tuple[Event, ...]:
        queue = taking.queue
        if taking.stamp.now_ms >= queue.fresh_until_ms and not _pass_by_old(taking):
            taking.comes_again = True
            return ()
        is_plain = not (queue.visible_again or queue.aliases or queue.ready_groups.total)
        if is_plain and len(queue.levels) == 1 and queue.in_levels == queue.waiting:
            self._take_from(taking, *queue.levels.values())
            return taking.events()
        shares = _Shares(queue.passes)
        if not is_plain:
            self._look_at_each(taking, self._all(taking, shares), shares)
        else:
            untouched: list[tuple[int, StoredMessage]] = []
            streams = self._streams(taking.shard, queue)
            for rank, (sequence, message, _) in self._in_turn(streams, shares):
                assert message is not None
                untouched.append((sequence, message))
                shares.served(rank)
                if len(untouched) == taking.limit:
                    break
            taking.take(untouched)
        if not taking.leases and queue.backlog > 0:
            taking.comes_again = True  # it looked for messages without a level among others
        return self._events(taking, shares)

    def _choose_highest(self, taking: Taking) -> tuple[Event, ...]:
        """Take messages of the highest priority only, for which slots are kept."""
        queue, taking.limit = taking.queue, taking.reserved
        if taking.stamp.now_ms >= queue.fresh_until_ms and not _pass_by_old(taking):
            taking.comes_again = True
            return ()
        shares = _Shares(queue.passes)
        highest = self._streams(taking.shard, queue).get(0, ())
        self._look_at_each(taking, ((0, each) for each in highest), shares)
        return self._events(taking, shares)

    def _events(self, taking: Taking, shares: _Shares) -> tuple[Event, ...]:
        events = taking.events()
        if self._is_strict:
            return events
        return (*events, *shares.events(taking.queue))

    def _take_from(self, taking: Taking, level: Level) -> None:
        """Take from the only level that waits, which uses up no shares."""
        if len(level.window) < taking.limit and level.backlog > 0:
            window.fill(taking.shard, taking.queue, taking.limit, level)
        taking.take(islice(level.window, taking.limit))

    def _look_at_each(
        self, taking: Taking, candidates: Iterator[tuple[int, _Candidate]], shares: _Shares
    ) -> None:
        taking.look_at_each()
        left: list[tuple[bytes, int]] = []
        for rank, (sequence, message, lease) in candidates:
            if taking.is_over:
                break
            if taking.offer(sequence, message, lease) is not Fate.TAKEN:
                continue
            shares.served(rank)
            if message is not None and message.group:
                left.append((message.group, sequence))
        for group, sequence in left:
            taking.book.leave(group, sequence)

    def _all(self, taking: Taking, shares: _Shares) -> Iterator[tuple[int, _Candidate]]:
        """All visible messages in order, with their ranks."""
        shard, queue = taking.shard, taking.queue
        if not is_unfair(queue, taking.stamp.now_ms):
            yield from self._in_turn(self._streams(shard, queue), shares)
            return
        given: set[int] = set()
        for rank, candidate in self._in_turn(self._quiet_streams(shard, queue), shares):
            if candidate[0] not in given:
                given.add(candidate[0])
                yield rank, candidate
        for rank, candidate in self._in_turn(self._streams(shard, queue), shares):
            if candidate[0] not in given:
                yield rank, candidate

    def _in_turn(
        self, streams: dict[int, Candidates], shares: _Shares
    ) -> Iterator[tuple[int, _Candidate]]:
        """The messages of all streams, the next one by rank or by shares."""
        if self._is_strict:
            for rank in sorted(streams):
                for candidate in streams[rank]:
                    yield rank, candidate
            return
        heads: dict[int, _Candidate] = {}
        while True:
            for rank in streams.keys() - heads.keys():
                head = next(streams[rank], None)
                if head is None:
                    del streams[rank]
                else:
                    heads[rank] = head
            if not heads:
                return
            rank = shares.next(heads)
            yield rank, heads.pop(rank)

    def _rank(self, level: int) -> int:
        """The place of a level: the lowest goes first, or is the highest priority."""
        behind = LEVELS if self._is_strict and level > LEVELS else 0
        return LEVELS - 1 - priority_of(level) + behind

    def _streams(self, shard: ShardState, queue: QueueState) -> dict[int, Candidates]:
        """The visible messages of each rank, the oldest first."""
        levels = {*queue.levels, *queue.visible_again}
        if queue.window or queue.backlog > 0:
            levels.add(0)
        streams: dict[int, Candidates] = {}
        for level in levels:
            rank, stream = self._rank(level), _stream(shard, queue, level)
            before = streams.get(rank)
            streams[rank] = stream if before is None else merge(before, stream, key=_sequence)
        return streams

    def _quiet_streams(self, shard: ShardState, queue: QueueState) -> dict[int, Candidates]:
        """Those of quiet groups: the next ones of each rank, and the oldest groups' next ones."""
        noisy = queue.fairness.noisy
        read_ready_groups = partial(shard.rows.ready_groups, queue.queue_id)
        listed = queue.ready_groups.in_order(read_ready_groups)
        quiet = islice((group for _, group in listed if group not in noisy), QUIET_GROUPS_MAX)
        found: dict[int, list[_Candidate]] = {}
        for group in list(quiet):
            for candidate in islice(line_of(shard, queue, group), PAGE):
                assert candidate[1] is not None
                found.setdefault(self._rank(candidate[1].level), []).append(candidate)
        streams = {
            rank: _of_quiet(stream, noisy) for rank, stream in self._streams(shard, queue).items()
        }
        for rank, candidates in found.items():
            candidates.sort(key=_sequence)
            streams[rank] = merge(streams.get(rank, ()), candidates, key=_sequence)
        return streams


class _Shares:
    """The use that each priority made of its shares, in one decision; ranks are of a weighted
    queue."""

    def __init__(self, passes: dict[int, int]) -> None:
        self.passes = passes
        """They grow by the more, the fewer shares a priority has. Not changed in place."""
        self._is_own = False

    def next(self, ranks: Iterable[int]) -> int:
        """The rank whose priority made the least use of its shares, else the highest priority."""
        return min(ranks, key=lambda rank: (self._start(LEVELS - 1 - rank), rank))

    def served(self, rank: int) -> None:
        """Count a message."""
        if not self._is_own:
            self.passes, self._is_own = dict(self.passes), True
        priority = priority_of(LEVELS - rank)
        start = self._start(priority)
        self.passes[_LATEST] = start
        self.passes[priority] = start + _FULL_ROUND // (priority + 1)

    def events(self, queue: QueueState) -> tuple[Event, ...]:
        """The change of the shares."""
        return (SharesUsed(queue.queue_id, self.passes),) if self._is_own else ()

    def _start(self, priority: int) -> int:
        return max(self.passes.get(priority, 0), self.passes.get(_LATEST, 0))


def _pass_by_old(taking: Taking) -> bool:
    """Pass by messages whose time is over, in all lines; False if these are too many for now."""
    queue, now_ms = taking.queue, taking.stamp.now_ms
    too_old_ms = now_ms - taking.request.queue.settings.retention_ms
    return all(
        window.fill_fresh(taking.shard, queue, taking.limit, too_old_ms, now_ms, PASSED_MAX, level)
        for level in (*queue.levels.values(), None)
    )


def _stream(shard: ShardState, queue: QueueState, level: int) -> Candidates:
    """The visible messages of a level, the oldest first."""
    waiting = _waiting(shard, queue, level)
    if level not in queue.visible_again:
        return waiting
    again = ((each.lease.sequence, None, each.lease) for each in queue.visible_again_of(level))
    return merge(again, waiting, key=_sequence)


def _waiting(shard: ShardState, queue: QueueState, number: int) -> Candidates:
    level = queue.levels.get(number)
    if number and level is None:
        return
    line, position = level or queue, 0
    while position < len(line.window) or line.backlog > 0:
        if position == len(line.window):
            window.fill(shard, queue, position + 1, level)
            if position == len(line.window):
                return
        yield (*line.window[position], None)
        position += 1


def _of_quiet(stream: Candidates, noisy: dict[bytes, int]) -> Candidates:
    passed = 0
    for candidate in stream:
        message = candidate[1] or candidate[2]
        assert message is not None
        if message.group not in noisy:
            yield candidate
            continue
        passed += 1
        if passed == _NOISY_PASSED_MAX:
            return


def _sequence(candidate: _Candidate) -> int:
    return candidate[0]


class SharesUsed(Event, frozen=True):
    """Messages were received by the weights of their priorities. Kept in memory only."""

    passes: dict[int, int]

    @override
    def apply(self, shard: ShardState) -> None:
        shard.queue(self.queue_id).passes = self.passes

    @override
    def record(self, changes: Changes) -> None:
        """No row: a new leader begins anew."""
