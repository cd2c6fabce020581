"""Death: how a message became a dead letter. Pure.

A receive shows it only if it asks for the attribute by name, since SDKs may not know what AWS does
not have.
"""

from __future__ import annotations

import msgspec

from visibility.contract.naming import shown_arn

MAX_RECEIVES = "max-receives"
EXPIRED = "expired"
OVER_LENGTH = "over-length"
QUEUE_DELETED = "queue-deleted"
LATE = "late"
HOPS = "hops"
"""With it a message is in no queue any more: it went to the archive."""
_BY_THEMSELVES = (EXPIRED, OVER_LENGTH, LATE)
HOPS_MAX = 8
"""Moves by themselves after which a message goes no further, as its queues form a circle."""
CAUSE_ATTRIBUTE = "HoldfastDeadLetterCause"


class Death(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The latest death of a message, `at_ms`. Stored form: only append.

    `hops` counts its deaths by themselves since it was sent or redriven: those that took neither
    consumers nor a deletion. The queue it came from is the message's `dead_letter_source_arn`.
    """

    cause: str
    at_ms: int
    hops: int = 0


class _Shown(msgspec.Struct, frozen=True):
    cause: str
    time: int
    source: str
    hops: int


def next_death(before: Death | None, cause: str, at_ms: int) -> Death:
    """The death that follows on an earlier one, if there was one."""
    hops = 0 if before is None else before.hops
    return Death(cause, at_ms, hops + (cause in _BY_THEMSELVES))


def was_rescued(death: Death | None, at_ms: int) -> bool:
    """True if the message died at this instant, since its queue was deleted."""
    return death is not None and death.cause == QUEUE_DELETED and death.at_ms == at_ms


def is_at_end(death: Death | None, cause: str) -> bool:
    """True if a message may not die of this cause any more, as it would go round for ever."""
    return death is not None and death.hops >= HOPS_MAX and cause in _BY_THEMSELVES


def redriven(death: Death | None) -> Death | None:
    """The death of a message that somebody gives another try; an undo of that shows it again."""
    return None if death is None else Death(death.cause, death.at_ms)


def shown_cause(death: Death | None, source_arn: str | None) -> str | None:
    """The attribute's value, JSON with the time in epoch milliseconds; None for a message that is
    no dead letter now, or became one in a version before 0.2."""
    if death is None or source_arn is None:
        return None
    shown = _Shown(death.cause, death.at_ms, shown_arn(source_arn), death.hops)
    return msgspec.json.encode(shown).decode()
