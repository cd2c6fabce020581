"""A search of one queue's archived messages, as a service asks a process of its own for it.

A place names an archived message, or a point between messages: where a page ended.
"""

from __future__ import annotations

import re
from datetime import datetime
from typing import NamedTuple

import msgspec

from visibility.content.content import Extras
from visibility.content.filters import matches_inside, matches_outside
from visibility.contract.move_task import MessageFilter
from visibility.contract.stored_message import Origin, StoredMessage

_PLACE = re.compile(r"([0-9]{1,17})\.([0-9a-zA-Z_-]{1,80}|~)\.([0-9]{1,9})\.([0-9]{1,18})")
LAST_SOURCE = "~"
"""Sorts behind all sources: the end of an instant."""


class Place(NamedTuple):
    """A message of the archive; (source, shard, position) alone names it, too."""

    sent_us: int
    source: str
    shard: int
    position: int

    def __str__(self) -> str:
        return ".".join(map(str, self))


Span = tuple[int, int]
"""The first and the last instant at which the messages of a file were sent, in microseconds."""


def read_place(text: str) -> Place | None:
    """The place in a text; None if there is none."""
    found = _PLACE.fullmatch(text)
    return None if found is None else Place(int(found[1]), found[2], int(found[3]), int(found[4]))


class ArchiveSearch(msgspec.Struct, frozen=True):
    """A page of the wanted messages, the latest sent first unless `oldest_first`."""

    lake: str
    account: str
    region: str
    queue: str
    limit: int
    filter: MessageFilter = MessageFilter()
    reason: str | None = None
    """Only messages that left for this reason, see `archive_schema.REASONS`."""
    oldest_first: bool = False
    after: Place | None = None
    """The end of the page before."""
    places: tuple[Place, ...] | None = None
    """Only these messages."""
    body_max: int | None = None
    """Characters of bodies and of values of attributes that are wanted; None for whole ones."""
    spans: dict[str, Span] = {}
    """Those of segments, as far as the one who asks knows them."""


class ArchivedRow(msgspec.Struct, frozen=True):
    """An archived message. A sealed one has no content here."""

    place: Place
    message_id: str
    reason: str
    removed_at: datetime
    first_received_at: datetime | None
    receive_count: int
    size: int
    source_arn: str | None
    cause: str | None
    died_at: datetime | None
    hops: int
    origin: Origin | None
    sequence_number: str | None
    is_sealed: bool
    is_damaged: bool
    """Its checksum is wrong."""
    body: str | None
    is_cut: bool
    """The body or an attribute is longer."""
    extras: Extras

    @property
    def sent_at_ms(self) -> int:
        """The instant of the send."""
        return self.place.sent_us // 1000


class FoundRows(msgspec.Struct, frozen=True):
    """The rows found among those scanned, and the place to go on from, None at the end."""

    rows: list[ArchivedRow]
    scanned: int
    next: Place | None
    spans: dict[str, Span] = {}
    """Those of segments which are still there, for the next search."""
    near: list[str] | None = None
    """If the archive has no such queue, similar names of the account's queues that it has; None if
    it has or may have it."""


def matches(wanted: ArchiveSearch, row: ArchivedRow) -> bool:
    """True for a wanted row with its whole content; a sealed one's matches no search for it."""
    if wanted.places is not None and row.place not in wanted.places:
        return False
    if wanted.reason is not None and row.reason != wanted.reason:
        return False
    stored = StoredMessage(
        row.message_id,
        row.sent_at_ms,
        row.size,
        b"",
        dead_letter_source_arn=row.source_arn,
        origin=row.origin,
    )
    return matches_outside(wanted.filter, stored, row.receive_count) and matches_inside(
        wanted.filter, row.body or "", row.extras
    )
