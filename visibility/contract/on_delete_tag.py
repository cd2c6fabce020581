"""A deleted queue: a tag says whether its messages go to its dead-letter queue. Pure."""

from __future__ import annotations

from visibility.contract.model import QueueSettings
from visibility.contract.own_tag import OwnTag

ON_DELETE_TAG = "holdfast:on-delete"
TO_DEAD_LETTERS = "dead-letter"

ON_DELETE_TAGS = (
    OwnTag(
        ON_DELETE_TAG,
        "Fate of the messages of the queue once it is deleted: they are lost (the default), or "
        "become dead letters.",
        ("discard", TO_DEAD_LETTERS),
        to_dead_letters=TO_DEAD_LETTERS,
    ),
)


def outlive(settings: QueueSettings, queue_arn: str) -> bool:
    """True if the messages of a queue with these settings become dead letters when it is
    deleted."""
    if settings.own_tags.get(ON_DELETE_TAG) != TO_DEAD_LETTERS or settings.redrive_policy is None:
        return False
    return settings.redrive_policy.dead_letter_target_arn != queue_arn
