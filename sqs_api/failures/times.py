"""Times: how many messages there are in each span of time, in bounded memory.

A span has a minute. While there are more than SPANS_MAX of them, spans are joined in pairs.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

SPANS_MAX = 256
_SHORTEST_S = 60


class NotedTimes(msgspec.Struct, frozen=True, array_like=True):
    """Times of a few messages, as a note has them: messages by the number of the minute."""

    first_s: int
    last_s: int
    minutes: list[tuple[int, int]]

    @classmethod
    def of(cls, times: Mapping[int, int]) -> NotedTimes:
        """Those of messages by second."""
        minutes: dict[int, int] = {}
        for at_s, messages in times.items():
            minute = at_s // _SHORTEST_S
            minutes[minute] = minutes.get(minute, 0) + messages
        return cls(min(times), max(times), list(minutes.items()))


class Times:
    """Times are in seconds."""

    __slots__ = ("first_s", "last_s", "span_s", "spans")

    def __init__(self) -> None:
        self.span_s = _SHORTEST_S
        self.spans: dict[int, int] = {}
        """Messages by the number of the span, which begins at this times `span_s`."""
        self.first_s = 0
        """Exact until the span of that time is empty, then the beginning of the next one; so is
        `last_s`."""
        self.last_s = 0

    def add(self, at_s: int) -> None:
        """Count a message."""
        spans, number = self.spans, at_s // self.span_s
        if number in spans:
            spans[number] += 1
            if at_s < self.first_s:
                self.first_s = at_s
            elif at_s > self.last_s:
                self.last_s = at_s
            return
        self.first_s = min(self.first_s, at_s) if spans else at_s
        self.last_s = max(self.last_s, at_s) if spans else at_s
        spans[number] = 1
        while len(self.spans) > SPANS_MAX:
            self._join_pairs()

    def add_noted(self, noted: NotedTimes) -> None:
        """Count those of a note."""
        spans, span_s = self.spans, self.span_s
        self.first_s = min(self.first_s, noted.first_s) if spans else noted.first_s
        self.last_s = max(self.last_s, noted.last_s) if spans else noted.last_s
        for minute, messages in noted.minutes:
            number = minute * _SHORTEST_S // span_s
            spans[number] = spans.get(number, 0) + messages
        while len(self.spans) > SPANS_MAX:
            self._join_pairs()

    def remove(self, at_s: int) -> None:
        """Count a message no longer that was counted with this time."""
        spans, number = self.spans, at_s // self.span_s
        left = spans[number] - 1
        if left:
            spans[number] = left
            return
        del spans[number]
        if not spans:
            return
        if number == self.first_s // self.span_s:
            self.first_s = min(spans) * self.span_s
        if number == self.last_s // self.span_s:
            self.last_s = max(spans) * self.span_s

    def _join_pairs(self) -> None:
        joined: dict[int, int] = {}
        for number, messages in self.spans.items():
            joined[number // 2] = joined.get(number // 2, 0) + messages
        self.spans = joined
        self.span_s *= 2

    def counts(self) -> list[tuple[int, int]]:
        """Beginnings of the spans in seconds, and their messages."""
        return sorted((number * self.span_s, messages) for number, messages in self.spans.items())
