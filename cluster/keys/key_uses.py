"""The days on which access keys were used last, numbered since 1970, by the key's id.

A host writes the day of a key once it was used on that day. Nothing depends on it: if the file is
lost, keys show no use or an earlier one.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import date, timedelta
from pathlib import Path
from typing import Annotated

import msgspec

from cluster.keys.identity_records import IdentitiesUnreadable
from storage.files.copying import replace_file

_DAY_DIGITS = 5
"""Later days are damage."""
_Day = Annotated[int, msgspec.Meta(ge=0, lt=10**_DAY_DIGITS)]


class KeyUseFile:
    """Of a single host: a JSON file, which is replaced as a whole."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def read(self) -> dict[str, int]:
        """See KeyUses."""
        try:
            return msgspec.json.decode(self._file.read_bytes(), type=dict[str, _Day])
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
            return {}

    def write(self, days: Mapping[str, int], known: Collection[str]) -> None:
        """See KeyUses."""
        before = self.read()
        after = {
            key_id: max(before.get(key_id, 0), days.get(key_id, 0))
            for key_id in before.keys() | days.keys()
            if key_id in known
        }
        try:
            replace_file(self._file, msgspec.json.encode(after, order="sorted"))
        except OSError as error:
            raise IdentitiesUnreadable(f"cannot write {self._file}: {error.strerror}") from error


def day_of(value: bytes | None) -> int | None:
    """A day from its digits; None if there is none, or if it is damage."""
    return int(value) if value and value.isdigit() and len(value) <= _DAY_DIGITS else None


def day_text(day: int | None) -> str | None:
    """A day as text, such as 2026-11-23; None if there is none."""
    return None if day is None else (date(1970, 1, 1) + timedelta(day)).isoformat()
