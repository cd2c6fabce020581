"""Messages that an operator withholds: put aside with an owner, or deleted after a while. Values
only."""

from __future__ import annotations

import msgspec

WITHHELD_UNTIL_MS = 1 << 52
"""End of the lease of a withheld message: later than any time, and exact in JSON."""
WITHHELD_MAX = 1_000
"""Withheld messages of one queue, which are in memory."""
OWNER_CHARACTERS_MAX = 100
REFERENCE_CHARACTERS_MAX = 200
DELETE_AFTER_MS_MAX = 3_600_000


class Withheld(msgspec.Struct, frozen=True, array_like=True):
    """The mark of a withheld message. Stored form: only append.

    `reference` names a ticket or a reason. A message with `deleted_at_ms` is deleted then; one with
    0 waits until it is released or expires.
    """

    sequence: int
    since_ms: int = 0
    owner: str = ""
    reference: str = ""
    deleted_at_ms: int = 0
