"""Notes of counted failures: what they hold, where they are kept, and which spans need one.

A note of a span is kept beside its messages, and is gone in the Entry in which one of these comes
or goes (`visibility/rules/failure_notes.py`). So who leads the shard next counts the spans without
a note only.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from itertools import count
from typing import NamedTuple

import msgspec

from auth.caller import Caller
from cluster.shards.router import Router
from sqs_api.failures.counted_failures import SpanNote
from sqs_api.gateway.sealer import Sealer
from visibility.content.noted_failures import NOTE_VERSION
from visibility.contract.model import QueueDefinition, Request
from visibility.contract.operations import Operation
from visibility.contract.outcomes import FailureNote, FailureNotesPage, SpansNoted
from visibility.contract.stored_message import StoredMessage
from visibility.rules.failure_notes import (
    NOTE_BYTES_MAX,
    ForgetFailures,
    NoteFailures,
    ReadFailureNotes,
)

QUIET_LOOKS = 4
"""Looks without a change after which a span gets a note,"""
LATE_LOOKS = 20
"""and looks after which it gets one all the same."""
SERVICE = Caller("", "", "failures")


class Notes:
    """Keeps notes in rows of this host's shards, sealed as the queues' messages are. Each call but
    `may_note` raises QueueError."""

    def __init__(self, router: Router, sealer: Sealer) -> None:
        self._router = router
        self._sealer = sealer
        self._requests = count()

    async def read(self, queue: QueueDefinition, from_span: int) -> FailureNotesPage:
        """Notes of a queue, from a span on."""
        page = await self._ask(queue, ReadFailureNotes(from_span))
        assert isinstance(page, FailureNotesPage)
        return page

    async def keep(
        self, queue: QueueDefinition, notes: list[FailureNote], opens: list[int]
    ) -> list[int]:
        """Keep notes of the spans that were opened by the call before; returns the spans that had
        not changed since. Opens others."""
        noted = await self._ask(queue, NoteFailures(notes, opens))
        assert isinstance(noted, SpansNoted)
        return noted.spans

    async def forget(self, queue: QueueDefinition) -> None:
        """Remove all notes of a queue."""
        await self._ask(queue, ForgetFailures())

    async def _ask(self, queue: QueueDefinition, operation: Operation) -> object:
        request_id = f"failures-{next(self._requests)}"
        return await self._router.ask_here(Request(operation, queue, SERVICE, request_id))

    def may_note(self, message: StoredMessage, queue: QueueDefinition) -> bool:
        """True if what a message failed for may be kept under the queue's key."""
        return self._sealer.may_note(message, queue)

    def seal(self, queue: QueueDefinition, content: bytes) -> tuple[int, bytes]:
        """The number of the key, and the sealed content."""
        key = self._sealer.key_of_notes(queue)
        return key.number, key.seal(content)

    def open(self, number: int, data: bytes) -> bytes | None:
        """The content; None if it cannot be opened."""
        return self._sealer.open_note(number, data)


def note_of(
    span: int, sequences: bytes, content: SpanNote, queue: QueueDefinition, notes: Notes
) -> FailureNote | None:
    """A note as it is kept; None if it would be too large. Raises QueueError."""
    sealed, data = notes.seal(queue, zlib.compress(msgspec.msgpack.encode(content), 1))
    if len(data) > NOTE_BYTES_MAX:
        return None
    return FailureNote(span, NOTE_VERSION, sequences, sealed, data)


def content_of(note: FailureNote, notes: Notes) -> SpanNote | None:
    """The content of a note; None if it cannot be used: of another version, or its key is gone.
    Raises QueueError."""
    data = notes.open(note.sealed, note.data) if note.version == NOTE_VERSION else None
    if data is None:
        return None
    try:
        return msgspec.msgpack.decode(zlib.decompress(data), type=SpanNote)
    except (msgspec.MsgspecError, zlib.error):
        return None


class _Change(NamedTuple):
    first: int
    """The look in which a span lost its note."""
    latest: int
    number: int
    """The number of the change, by which a later one is told apart."""


class Unnoted:
    """The spans without a note."""

    def __init__(self) -> None:
        self._changes: dict[int, _Change] = {}
        self._look = self._number = 0

    def __bool__(self) -> bool:
        return bool(self._changes)

    def changed(self, span: int) -> None:
        """A message came or went, or was counted."""
        self._number += 1
        before = self._changes.get(span)
        first = before.first if before is not None else self._look
        self._changes[span] = _Change(first, self._look, self._number)

    def due(self) -> Iterator[int]:
        """The spans that should be noted by now; called once a look."""
        self._look += 1
        quiet, late = self._look - QUIET_LOOKS, self._look - LATE_LOOKS
        return (
            span
            for span, change in self._changes.items()
            if change.latest <= quiet or change.first <= late
        )

    def numbers(self, spans: Iterable[int]) -> dict[int, int]:
        """The latest changes of spans, to be given back to `noted`."""
        return {span: self._changes[span].number for span in spans if span in self._changes}

    def noted(self, numbers: dict[int, int]) -> None:
        """These spans have notes, unless they changed since."""
        for span, number in numbers.items():
            if span in self._changes and self._changes[span].number == number:
                del self._changes[span]

    def put_off(self, spans: Iterable[int]) -> None:
        """Their notes were refused, since they change all the time: they are late later."""
        for span in spans:
            if span in self._changes:
                self._changes[span] = self._changes[span]._replace(first=self._look)

    def give_up(self, span: int) -> None:
        """A span gets no note until it changes again."""
        self._changes.pop(span, None)
