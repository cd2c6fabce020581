"""Pages of the messages that may have one failure: notes tell which of their spans have.

A note is true in every state of the rows, so what it leaves out need not be read. Where there is
none that can be used, all are looked at. The first message that a task moves takes the note of its
span away: what it said of the spans under way is kept in memory (`Walked`), until the task is
behind them. Messages that come to such a span afterwards are not looked at.
"""

from __future__ import annotations

from bisect import bisect_left
from contextlib import suppress
from typing import NamedTuple

from visibility.content.noted_failures import NOTE_VERSION, Noted, noted
from visibility.contract.errors import QueueError
from visibility.contract.outcomes import FailureNote
from visibility.contract.stored_message import StoredMessage
from visibility.rows.row_codec import DamagedRecord, decode_row
from visibility.rows.row_keys import FAILURE_NOTE, SPAN_BITS, row_key
from visibility.state.noted_spans import Walked
from visibility.state.queue_state import QueueState
from visibility.state.shard_state import ShardState

COST_MAX = 16
"""Notes that are opened for one page: some milliseconds, unless a single one takes longer."""
_CHOSEN_COST = 4
"""Cost of a note with messages of the failure, in notes without."""
CELLS_AS_ONE = 25
"""Cells that are compared in the time of such a note: one may have thousands."""
_OFFSETS = (1 << SPAN_BITS) - 1


class FailurePage(NamedTuple):
    """Messages that may have the failure. `cursor` is the sequence after the page, which has
    nothing else from `first` on."""

    messages: list[tuple[int, StoredMessage]]
    first: int
    cursor: int
    spans: dict[int, int]
    """The bits of the messages of each span."""

    def looked_at(self, cursor: int) -> int:
        """Messages of the queue that the page tells of, up to before this sequence."""
        found = 0
        for span, bits in self.spans.items():
            begin = span << SPAN_BITS
            low, high = max(self.first - begin, 0), min(cursor - begin, _OFFSETS + 1)
            if low < high:
                found += (bits >> low & (1 << high - low) - 1).bit_count()
        return found


class FailureWalk(NamedTuple):
    """A walk over the messages of a queue that may have a failure. What it `walked` is kept by who
    walks."""

    shard: ShardState
    queue: QueueState
    failure_id: str
    walked: Walked

    def page(self, first: int, until: int, *, messages: int, size: int) -> FailurePage:
        """Messages from `first` to before `until`: at most `messages`, fewer once they hold `size`
        bytes, at least one. Where there is no note these are all messages."""
        page = FailurePage([], first, first, {})
        found, at, cost = page.messages, first, 0
        while (span := self._span_from(at)) is not None and (begin := span << SPAN_BITS) < until:
            known = self.walked.spans.get(span)
            if known is None and cost < COST_MAX:
                known = self._read(span)
                if known is not None:
                    self.walked.spans[span] = known
                    cost += known.cells // CELLS_AS_ONE
            if known is None:
                if not page.spans:
                    end = min(begin + _OFFSETS + 1, until)
                    return self._whole_page(first, end, messages=messages, size=size)
                return page._replace(cursor=max(at, begin))
            page.spans[span] = known.bits
            cost += _CHOSEN_COST if known.chosen else 1
            for offset in known.chosen[bisect_left(known.chosen, at - begin) :]:
                if begin + offset >= until:
                    break
                if len(found) == messages or size <= 0:
                    return page._replace(cursor=begin + offset)
                read = self.shard.rows.unless_quarantined(self.queue, [begin + offset])
                found += read
                size -= sum(len(message.data) for _, message in read)
            at = begin + _OFFSETS + 1
        return page._replace(cursor=until)

    def _span_from(self, sequence: int) -> int | None:
        """The first span with messages, from that of this sequence on."""
        span = sequence >> SPAN_BITS
        if span in self.queue.spans or span in self.walked.spans:
            return span
        return min((each for each in self.queue.spans if each > span), default=None)

    def _whole_page(self, first: int, until: int, *, messages: int, size: int) -> FailurePage:
        queue = self.queue
        line = self.shard.rows.line(
            queue.queue_id,
            first,
            until,
            messages=messages,
            size=size,
            quarantined=queue.quarantined,
            spans=queue.spans,
        )
        spans: dict[int, int] = {}
        for sequence, _ in line.messages:
            span = sequence >> SPAN_BITS
            spans[span] = spans.get(span, 0) | 1 << (sequence & _OFFSETS)
        return FailurePage(line.messages, first, line.next_sequence or until, spans)

    def _read(self, span: int) -> Noted | None:
        queue = self.queue
        if queue.failure_notes is None or span in queue.changed_spans:
            return None
        key = row_key(queue.queue_id, FAILURE_NOTE, span)
        with suppress(DamagedRecord, QueueError):  # its key may be away for now
            value = self.shard.rows.store.get(key)
            note = None if value is None else decode_row(FailureNote, key, value)
            if note is not None and note.version == NOTE_VERSION:
                content = self.shard.sealing.open_note(note.sealed, note.data)
                return None if content is None else noted(note, content, self.failure_id)
        return None
