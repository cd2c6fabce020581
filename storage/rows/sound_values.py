"""Checks a stored value alone, as a scrub does: version and checksum, without decoding it.

RocksDB's checksums say that a block is what was written. A value may have been wrong before.
"""

from __future__ import annotations

from collections.abc import Callable

from visibility.rows.row_codec import DamagedRecord, check_value, decode_row
from visibility.rows.row_keys import (
    BLOCKED,
    DELAYED,
    GROUP_LINE,
    QUARANTINED,
    SPAN_BITS,
    group_key,
    group_name,
    is_between,
    message_name,
    row_key,
)
from visibility.rows.row_values import NOWHERE, Quarantined
from visibility.rules.features import TABLES
from visibility.state.queue_state import is_passed_by

Get = Callable[[bytes], bytes | None]


def check_stored(key: bytes, value: bytes, get: Get) -> None:
    """Raises DamagedRecord for a damaged value, unless it is quarantined: nothing reads it then.

    `get` reads another row of the same view.
    """
    table = TABLES.get(key[8:9])
    if table is not None and (table.row is None or (not value and table.may_be_empty)):
        return  # the digest of a group, or nothing
    try:
        check_value(key, value)
    except DamagedRecord:
        if not _is_quarantined(key, get):
            raise


def _is_quarantined(key: bytes, get: Get) -> bool:
    group = group_name(key)
    if group is not None:
        return key[8:9] == GROUP_LINE and get(group_key(group[0], BLOCKED, group[1])) is not None
    message = message_name(key)
    if message is None:
        return False
    queue_id, sequence = message
    is_delayed = key[8:9] == DELAYED
    place = row_key(queue_id, QUARANTINED, NOWHERE if is_delayed else sequence >> SPAN_BITS)
    value = get(place)
    if value is None:
        return False
    record = decode_row(Quarantined, place, value)
    return is_between(key, record.delayed) if is_delayed else is_passed_by(record, sequence)
