"""FailureNote: what is kept of a dead-letter queue's failures, so that they are counted once."""

from __future__ import annotations

import msgspec


class FailureNote(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The failures of the messages of one span of sequences, as `sqs_api/failures` counted them; a
    row.

    Invariant: it is there only while the span's messages are those of `sequences`, a bit for each
    sequence, the first one lowest. `version` is that of the way in which failures are found, and of
    `data`, whose content is sealed under the data key `sealed`.
    """

    span: int
    version: int
    sequences: bytes
    sealed: int
    data: bytes


class FailureNotesPage(msgspec.Struct, frozen=True):
    """Notes by span; `next_span` is where the rest begins, None at the end."""

    notes: list[FailureNote]
    next_span: int | None


class SpansNoted(msgspec.Struct, frozen=True):
    """The spans whose notes were kept. Those that had changed since they were opened are not."""

    spans: list[int]
