"""Counts of failures: exact whatever comes and goes, and bounded."""

from __future__ import annotations

from collections import Counter
from random import Random

import msgspec
import pytest

from sqs_api.failures.counted_failures import (
    GROUPS_MAX,
    OTHER_SOURCES,
    SOURCES_MAX,
    Counted,
    Dead,
    SpanNote,
)
from sqs_api.failures.times import SPANS_MAX, Times
from visibility.content.failures import Failure

SPANS = range(10)
"""Those of the messages here."""


def dead(sequence: int, kind: object = "a", source: str = "s", at_s: int = 0) -> Dead:
    return Dead(sequence, Failure((("text", str(kind)),)), source, at_s + 60, at_s)


def shown(counts: Counted) -> dict[str, int]:
    """Messages by the sign of their failure."""
    found = {g.failure.signs[0][1]: g.messages for g in counts.groups.values() if g.failure}
    return found | ({"rest": counts.rest.messages} if counts.rest.messages else {})


def packed(counts: Counted) -> Counted:
    """The same counts, with each span packed."""
    for span in SPANS:
        counts.note(span)
    return counts


def loaded(counts: Counted) -> Counted:
    """The same counts, from notes."""
    again = Counted()
    for span in SPANS:
        noted = counts.note(span)
        if noted is not None:
            sequences, note = noted
            kept = msgspec.msgpack.decode(msgspec.msgpack.encode(note), type=SpanNote)
            assert again.load(span, sequences, kept)
    return again


@pytest.mark.parametrize("seed", range(5))
def test_counts_are_those_of_the_messages_that_are_there(seed: int) -> None:
    random = Random(seed)
    counts, model = Counted(), dict[int, Dead]()
    for _ in range(3_000):
        sequence = random.randrange(600) * 57
        if random.random() < (0.7 if len(model) < 300 else 0.3):
            new = dead(
                sequence, random.choice("abcde"), random.choice("xyz"), random.randrange(10**6)
            )
            assert counts.add(new) is (sequence not in model)
            model.setdefault(sequence, new)
        else:
            assert counts.remove(sequence) is (sequence in model)
            model.pop(sequence, None)
        if random.random() < 0.01:
            counts = loaded(counts) if random.random() < 0.5 else packed(counts)

    assert counts.messages == len(model)
    assert shown(counts) == Counter(each.failure.signs[0][1] for each in model.values())
    for group in counts.groups.values():
        own = [each for each in model.values() if each.failure == group.failure]
        assert group.sources == Counter(each.source for each in own)
        assert sum(messages for _, messages in group.seen.counts()) == len(own)
        assert 0 <= min(each.seen_s for each in own) - group.seen.first_s < group.seen.span_s
        assert 0 <= max(each.seen_s for each in own) - group.seen.last_s < group.seen.span_s
        assert set(counts.live_samples(group)) <= {each.sequence for each in own}
    assert all(sequence in counts for sequence in model)


def test_all_that_left_leave_nothing_behind() -> None:
    counts = Counted()
    for sequence in range(10_000):
        counts.add(dead(sequence, sequence % 7, str(sequence % 3)))
    for sequence in range(10_000):
        counts.remove(sequence)

    assert (counts.messages, counts.groups, counts.rest.messages) == (0, {}, 0)
    assert counts.weight == 0
    assert len(counts._free) == len(counts._cells) == 21


def test_failures_beyond_the_bound_are_counted_together() -> None:
    counts = Counted()
    for sequence in range(GROUPS_MAX + 30):
        counts.add(dead(sequence, sequence))
    counts.remove(0)
    counts.add(dead(5_000, GROUPS_MAX + 7))  # one of the rest

    assert len(counts.groups) == GROUPS_MAX - 1
    assert counts.rest.messages == 31
    assert not counts.would_gain
    for sequence in range(GROUPS_MAX // 2 + 1):
        counts.remove(sequence)
    assert counts.would_gain


def test_a_note_keeps_those_beyond_the_bound_together() -> None:
    counts = Counted()
    for sequence in range(GROUPS_MAX + 30):
        counts.add(dead(sequence, sequence))
    again = loaded(counts)

    assert shown(again) == shown(counts)
    sequences, note = counts.note(0) or (b"", SpanNote([], b""))
    full = Counted()
    for sequence in range(GROUPS_MAX):
        full.add(dead(10_000 + sequence, f"another {sequence}"))
    assert not full.load(0, sequences, note)


def test_sources_beyond_the_bound_are_counted_together() -> None:
    counts = Counted()
    for sequence in range(SOURCES_MAX + 9):
        counts.add(dead(sequence, "a", f"source-{sequence}"))
    (group,) = counts.groups.values()

    assert len(group.sources) == SOURCES_MAX + 1
    assert group.sources[OTHER_SOURCES] == 9


def test_times_are_joined_when_they_are_too_many() -> None:
    times = Times()
    for minute in range(20_160):
        times.add(minute * 60)
    assert len(times.spans) <= SPANS_MAX
    assert sum(times.spans.values()) == 20_160
    assert (times.first_s, times.last_s) == (0, 20_159 * 60)
    for minute in range(20_160):
        times.remove(minute * 60)
    assert times.spans == {}
