"""TABLE: the tags of queues, and the attributes of messages, with a meaning for this service. Pure.

SQS has no attributes for these settings and refuses unknown attributes, but every client can set a
tag. A feature adds its tags to the list; checks, console, commands and the OpenAPI document take
them from there. A tag of this prefix that is not listed is refused: it is probably a typing error.
"""

from __future__ import annotations

from collections.abc import Mapping

from visibility.contract.at_most_once_tag import DELIVERY_TAGS, check_delivery
from visibility.contract.digests import Attributes
from visibility.contract.errors import InvalidParameterValue
from visibility.contract.length import LENGTH_TAGS
from visibility.contract.levelling import LEVELLING_TAGS
from visibility.contract.on_delete_tag import ON_DELETE_TAGS
from visibility.contract.own_tag import PREFIX, OwnAttribute, OwnTag
from visibility.contract.priority import PRIORITY, PRIORITY_TAGS
from visibility.contract.retry_backoff import RETRY_TAGS
from visibility.contract.schedule import DELIVER_AT, SCHEDULE_TAGS
from visibility.contract.sender_order import ORDER_TAGS, SENT_AT, check_order
from visibility.contract.time_to_live import TTL, TTL_TAGS

ARCHIVE_EXPIRED = "expired"
ARCHIVE_ALL = "all"
ARCHIVE_NONE = "none"
ARCHIVE_TAG = "holdfast:archive"
PROTECT_ON = "on"
PROTECT_TAG = "holdfast:protect"
DELETION_PROTECTION_TAG = "holdfast:deletion-protection"
"""Named as other services of AWS name it."""

OWN_TAGS = {
    row.key: row
    for row in (
        OwnTag(
            ARCHIVE_TAG,
            "Messages that go to the archive: those older than the queue's retention (the "
            "default), also those that consumers deleted, or none.",
            (ARCHIVE_EXPIRED, ARCHIVE_ALL, ARCHIVE_NONE),
        ),
        OwnTag(
            PROTECT_TAG,
            "The queue is protected from being deleted or purged.",
            (PROTECT_ON, "off"),
        ),
        OwnTag(
            DELETION_PROTECTION_TAG,
            "The queue is protected from being deleted; it may be purged.",
            (PROTECT_ON, "off"),
        ),
        *RETRY_TAGS,
        *LEVELLING_TAGS,
        *SCHEDULE_TAGS,
        *TTL_TAGS,
        *PRIORITY_TAGS,
        *LENGTH_TAGS,
        *DELIVERY_TAGS,
        *ON_DELETE_TAGS,
        *ORDER_TAGS,
    )
}
"""The tags, by key."""
OWN_ATTRIBUTES: tuple[OwnAttribute, ...] = (DELIVER_AT, TTL, PRIORITY, SENT_AT)
"""The attributes."""


def check_own_tags(tags: Mapping[str, str]) -> None:
    """Refuse a tag of this service with an unknown key or value. Raises InvalidParameterValue."""
    for key, value in tags.items():
        if not key.lower().startswith(PREFIX):
            continue
        row = OWN_TAGS.get(key)
        if row is None:
            raise InvalidParameterValue(
                f"Tag {key} is unknown. Tags beginning with {PREFIX} are: {', '.join(OWN_TAGS)}."
            )
        if not row.takes(value):
            raise InvalidParameterValue(
                f"Value {value} for tag {key} is invalid. Valid values are: {row.values}."
            )


def check_together(tags: Mapping[str, str], given: Mapping[str, str], *, fifo: bool) -> None:
    """Refuse tags of this service that contradict others of the queue, or its type. `tags` are
    those that it is to have, `given` those of the request. Raises InvalidParameterValue."""
    check_delivery(tags)
    if tags.get(ARCHIVE_TAG) == ARCHIVE_NONE:
        reason = f"the queue has tag {ARCHIVE_TAG} with value {ARCHIVE_NONE}"
        check_archive(tags if ARCHIVE_TAG in given else given, reason)
    check_order(tags)
    for key in given:
        row = OWN_TAGS.get(key)
        if row is None:
            continue
        if fifo and row.is_for_standard:
            raise InvalidParameterValue(f"Tag {key} is not valid for a FIFO queue.")
        if row.check is not None:
            row.check(tags)


def check_archive(tags: Mapping[str, str], reason: str) -> None:
    """Refuse tags that send messages to an archive; `reason` says why there is none. Raises
    InvalidParameterValue."""
    for key, value in tags.items():
        row = OWN_TAGS.get(key)
        if row is not None and row.to_archive == value:
            raise InvalidParameterValue(
                f"Tag {key} with value {value} needs an archive, but {reason}."
            )


def without_effect(tags: Mapping[str, str], *, has_dead_letters: bool) -> dict[str, str]:
    """The queue's tags of this service that mean nothing as things are, each with the reason. Such
    are left when another tag, or the redrive policy, is removed."""
    found = {}
    for key, value in tags.items():
        row = OWN_TAGS.get(key)
        if row is None:
            continue
        if row.needs and not any(need in tags for need in row.needs):
            found[key] = f"the queue has no tag {' or '.join(row.needs)}"
        elif value == row.to_dead_letters and not has_dead_letters:
            found[key] = "the queue has no dead-letter queue"
    return found


def own_numbers(attributes: Attributes, own_tags: Mapping[str, str]) -> dict[str, int]:
    """The numbers in the attributes of a message that have a meaning, by name. Raises
    InvalidParameterValue."""
    return {
        each.name: each.number_in(attributes, own_tags)
        for each in OWN_ATTRIBUTES
        if each.name in attributes
    }


def taken_bounds(own_tags: Mapping[str, str]) -> dict[str, tuple[int, int]] | None:
    """The attributes with a meaning that messages of a queue with these tags may have, by name: the
    least and the greatest number. None for none."""
    taken = (each for each in OWN_ATTRIBUTES if each.is_taken(own_tags))
    return {each.name: (each.bounds.low, each.bounds.high) for each in taken} or None


def own_tags_of(tags: Mapping[str, str]) -> dict[str, str]:
    """The tags with a meaning for this service. Wrong ones, from before they were checked, are left
    out."""
    return {
        key: value for key, value in tags.items() if key in OWN_TAGS and OWN_TAGS[key].takes(value)
    }
