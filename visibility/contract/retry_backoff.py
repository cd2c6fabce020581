"""Retry back-off: two tags by which a message that becomes visible again waits before it may be
received. Pure.

The wait begins at the end of the visibility timeout, or with a change of it to 0. It is decided and
stored with the receive, in the message's lease. `Lease` says what it means for a message.
"""

from __future__ import annotations

from collections.abc import Mapping

from visibility.contract.errors import InvalidParameterValue
from visibility.contract.limits import Range
from visibility.contract.own_tag import OwnTag

RETRY_MIN_TAG = "holdfast:retry-min"
RETRY_MAX_TAG = "holdfast:retry-max"
_SECONDS = Range(1, 43_200)
_MAX_DEFAULT_S = 900
_DOUBLED_MAX = 16


def _check(tags: Mapping[str, str]) -> None:
    low, high = tags.get(RETRY_MIN_TAG), tags.get(RETRY_MAX_TAG)
    if low is None:
        raise InvalidParameterValue(f"Tag {RETRY_MAX_TAG} needs tag {RETRY_MIN_TAG}.")
    if high is not None and int(high) < int(low):
        raise InvalidParameterValue(
            f"Value {high} for tag {RETRY_MAX_TAG} is invalid. It is below that of tag "
            f"{RETRY_MIN_TAG}, {low}."
        )


RETRY_TAGS = (
    OwnTag(
        RETRY_MIN_TAG,
        "Seconds for which a message waits after its first receive ended without a delete; each "
        "further receive doubles them.",
        bounds=_SECONDS,
        check=_check,
    ),
    OwnTag(
        RETRY_MAX_TAG,
        f"Seconds for which a message waits at most between two receives; {_MAX_DEFAULT_S} without "
        "this tag.",
        bounds=_SECONDS,
        check=_check,
        needs=(RETRY_MIN_TAG,),
    ),
)


def retry_wait_ms(own_tags: Mapping[str, str], receives: int, chance: int) -> int:
    """The wait after this many receives in the queue, 0 without the tags.

    min * 2^(receives - 1), and by `chance` up to a quarter more; at most max, of which it is then
    four fifths or more.
    """
    low_s = own_tags.get(RETRY_MIN_TAG)
    if low_s is None:
        return 0
    low_ms = int(low_s) * 1000
    high_ms = max(low_ms, int(own_tags.get(RETRY_MAX_TAG, _MAX_DEFAULT_S)) * 1000)
    wait_ms = min(low_ms << min(receives - 1, _DOUBLED_MAX), max(low_ms, high_ms * 4 // 5))
    return wait_ms + chance % (min(high_ms, wait_ms * 5 // 4) - wait_ms + 1)
