"""TABLE: the tags that mean something to this service, with their values. Pure.

SQS has no attributes for these settings, unknown attributes are refused, and every client can set a tag. A tag of this
prefix that is not in the table would be a typing error that nobody notices, so it is refused.
"""

from __future__ import annotations

from collections.abc import Mapping

from visibility.contract.errors import InvalidParameterValue

PREFIX = "holdfast:"

ARCHIVE_TAG = "holdfast:archive"
"""Selects the messages that go to the archive."""
ARCHIVE_EXPIRED = "expired"
"""Those that were older than the queue's retention; the default."""
ARCHIVE_ALL = "all"
"""Those that consumers deleted, too."""
ARCHIVE_NONE = "none"

PROTECT_TAG = "holdfast:protect"
"""Protects the queue from being deleted and purged."""
PROTECT_ON = "on"
PROTECT_OFF = "off"

KNOWN_TAGS: dict[str, tuple[str, ...]] = {
    ARCHIVE_TAG: (ARCHIVE_EXPIRED, ARCHIVE_ALL, ARCHIVE_NONE),
    PROTECT_TAG: (PROTECT_ON, PROTECT_OFF),
}


def check_own_tags(tags: Mapping[str, str]) -> None:
    """Refuse what would be ignored: an unknown tag of this service, and a wrong value. Raises InvalidParameterValue."""
    for key, value in tags.items():
        if not key.lower().startswith(PREFIX):
            continue
        values = KNOWN_TAGS.get(key)
        if values is None:
            raise InvalidParameterValue(
                f"Tag {key} is unknown. Tags beginning with {PREFIX} are: {', '.join(KNOWN_TAGS)}."
            )
        if value not in values:
            raise InvalidParameterValue(
                f"Value {value} for tag {key} is invalid. Valid values are: {', '.join(values)}."
            )
