"""Rights that a change of a queue's tags needs beside sqs:TagQueue or sqs:UntagQueue: one by which
messages can be lost, and one that takes a protection away. Pure.

Whoever may label queues, for bills or searches, cannot destroy their messages by it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from visibility.contract.at_most_once_tag import DELIVERY_TAG, delivers_at_most_once
from visibility.contract.length import DROP_OLDEST, MAX_BYTES_TAG, MAX_MESSAGES_TAG, OVERFLOW_TAG
from visibility.contract.tags import DELETION_PROTECTION_TAG, PROTECT_ON, PROTECT_TAG
from visibility.contract.time_to_live import EXPIRED_TAG, TTL_TAG, discards_expired

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
