"""TABLE: the tags of queues, and the attributes of messages, with a meaning for this service. Pure.

SQS has no attributes for these settings and refuses unknown attributes, but every client can set a
tag. A feature adds its tags to the list; checks, console, commands and the OpenAPI document take
them from there. A tag of this prefix that is not listed is refused: it is probably a typing error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from visibility.contract.at_most_once_tag import (
    DELIVERY_TAG,
    DELIVERY_TAGS,
    check_delivery,
    delivers_at_most_once,
)
from visibility.contract.digests import Attributes
from visibility.contract.errors import InvalidParameterValue
from visibility.contract.length_tags import (
    DROP_OLDEST,
    LENGTH_TAGS,
    MAX_BYTES_TAG,
    MAX_MESSAGES_TAG,
    OVERFLOW_TAG,
    TO_DEAD_LETTERS,
    UNLIMITED,
    limits_of,
)
from visibility.contract.levelling_tags import (
    LEVELLING_TAGS,
    THROTTLE_AGE_TAG,
    THROTTLE_DEPTH_TAG,
)
from visibility.contract.model import Joining
from visibility.contract.on_delete_tag import ON_DELETE_TAGS
from visibility.contract.own_tag import PREFIX, OwnAttribute, OwnTag
from visibility.contract.priority import PRIORITY, PRIORITY_TAGS, joining_level
from visibility.contract.retry_backoff import RETRY_TAGS
from visibility.contract.schedule import DELIVER_AT, SCHEDULE_TAGS
from visibility.contract.sender_order_tags import ORDER_TAG, ORDER_TAGS, SENT_AT, check_order
from visibility.contract.time_to_live_tags import (
    EXPIRED_TAG,
    TTL,
    TTL_TAG,
    TTL_TAGS,
    discards_expired,
    expiry,
)

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


def joining_of(own_tags: Mapping[str, str]) -> Joining | None:
    """Read once for all sends: the meaning of the tags for each message that joins.

    None if they say nothing, or have messages moved or wait when others join.
    """
    if not own_tags or ORDER_TAG in own_tags or own_tags.get(OVERFLOW_TAG) == TO_DEAD_LETTERS:
        return None
    messages, size = limits_of(own_tags, 1) or (UNLIMITED, UNLIMITED)
    is_throttled = THROTTLE_DEPTH_TAG in own_tags or THROTTLE_AGE_TAG in own_tags
    return Joining(messages, size, expiry(own_tags, 0), joining_level(own_tags, 0), is_throttled)


# -- rights to change tags -------------------------------------------------------------------------
# Whoever may label queues, for bills or searches, cannot destroy their messages by it: besides
# sqs:TagQueue or sqs:UntagQueue, a policy by which messages can be lost needs a right, and so does
# the end of a protection.

SET_LOSSY_POLICY = "holdfast:SetLossyPolicy"
LIFT_PROTECTION = "holdfast:LiftProtection"


def _drops(tags: Mapping[str, str]) -> bool:
    is_limited = MAX_MESSAGES_TAG in tags or MAX_BYTES_TAG in tags
    return is_limited and tags.get(OVERFLOW_TAG) == DROP_OLDEST


_LOSSY: dict[tuple[str, ...], Callable[[Mapping[str, str]], bool]] = {
    (DELIVERY_TAG,): delivers_at_most_once,
    (TTL_TAG, EXPIRED_TAG): discards_expired,
    (MAX_MESSAGES_TAG, MAX_BYTES_TAG, OVERFLOW_TAG): _drops,
}
"""Tags of a policy, and whether messages are lost by it."""
_PROTECTING = (PROTECT_TAG, DELETION_PROTECTION_TAG)


def rights_to_change(before: Mapping[str, str], after: Mapping[str, str]) -> tuple[str, ...]:
    """The actions that policies must allow for a change of these tags to those.

    A policy that loses messages needs one for whatever of it changes, such as a lower limit.
    """
    changed = {key for key in before.keys() | after.keys() if before.get(key) != after.get(key)}
    rights = []
    if any(loses(after) and not changed.isdisjoint(keys) for keys, loses in _LOSSY.items()):
        rights.append(SET_LOSSY_POLICY)
    if any(before.get(key) == PROTECT_ON and key in changed for key in _PROTECTING):
        rights.append(LIFT_PROTECTION)
    return tuple(rights)
