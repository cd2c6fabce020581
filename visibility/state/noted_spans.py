"""FailureNotes: the notes of a dead-letter queue's failures, as far as Turns need to know them.

A note is true while no message of its span comes or goes. So the Entry that changes a span removes
its note, and a new note is taken only of a span that was opened before it was made, and has not
changed since.
"""

from __future__ import annotations

from collections.abc import Collection

from visibility.content.noted_failures import Noted
from visibility.rows.row_changes import Changes
from visibility.rows.row_keys import FAILURE_NOTE, SPAN_BITS, row_key

GONE_MAX = 10_000


class Walked:
    """The messages of spans under way, as notes told before they went; for one task and failure."""

    __slots__ = ("spans", "task_id")

    def __init__(self, task_id: str = "") -> None:
        self.task_id = task_id
        self.spans: dict[int, Noted] = {}

    def pass_by(self, sequence: int) -> None:
        """Forget the spans before that of a sequence."""
        for span in [each for each in self.spans if each < sequence >> SPAN_BITS]:
            del self.spans[span]


class FailureNotes:
    """Volatile: a start knows of no opened span, and of none without a note."""

    __slots__ = ("_gone", "opened", "walked")

    def __init__(self) -> None:
        self.opened: set[int] = set()
        """Spans that have not changed since they were opened."""
        self._gone: set[int] = set()
        """Spans whose notes were removed, so that this is recorded once. Bounded."""
        self.walked = Walked()
        """The spans that the active move task has walked."""

    def walked_by(self, task_id: str) -> Walked:
        """That of a task, begun anew for another one."""
        if self.walked.task_id != task_id:
            self.walked = Walked(task_id)
        return self.walked

    def open(self, spans: Collection[int]) -> None:
        """Watch these spans, and no others, until they change."""
        self.opened = set(spans)

    def add(self, span: int) -> None:
        """A span has a note."""
        self._gone.discard(span)

    def remove(self, changes: Changes, queue_id: int, changed: Collection[int]) -> None:
        """Record that the notes of changed spans are gone: once in a Turn, after its events."""
        for span in changed:
            self.opened.discard(span)
            if span not in self._gone:
                changes.delete(row_key(queue_id, FAILURE_NOTE, span))
                self._gone.add(span)
        if len(self._gone) > GONE_MAX:
            self._gone.clear()
