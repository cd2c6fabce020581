"""The records of a cluster's keyring.

root                    the root key, wrapped under the master key; wraps secrets and versions
secrets/PURPOSE         a secret
keys/ACCOUNT/NAME       a named key with its versions and grants
data/NUMBER             a block of data keys, wrapped under a version
ids/version, ids/block  the numbers issued last
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TypeVar

import msgspec

from auth.envelope import DataKey, SealBroken, derived_key
from cluster.coordination.shared_records import Draft

PREFIX = "keyring/"
"""Prefix of all these records among those of the cluster."""
ROOT, SECRETS, KEYS, DATA = "root", "secrets/", "keys/", "data/"
VERSIONS, BLOCKS = "version", "block"
"""Counters."""
BLOCK = 1024
"""Data keys of a block. Stored: a number tells its block by it."""

T = TypeVar("T")


class StoredNamedKey(msgspec.Struct, frozen=True):
    """A named key."""

    key_id: str
    created_at_ms: int
    enabled: bool
    versions: dict[int, bytes]
    """Wrapped; the newest has the highest number."""
    grants: dict[str, tuple[str, ...]] = {}
    """Operations by grantee."""


class StoredBlock(msgspec.Struct, frozen=True):
    """A block of data keys."""

    version: int
    wrapped: bytes
    created_at_ms: int


class OwnBlock:
    """The block from which this process makes data keys under one named key."""

    def __init__(self, number: int, version: int, secret: bytes) -> None:
        self.version = version
        self._secret = secret
        self._next = (number - 1) * BLOCK + 1
        self._end = self._next + BLOCK

    def next_key(self) -> DataKey | None:
        """A data key that was never issued before; None if all were."""
        number, self._next = self._next, self._next + 1
        return DataKey(number, derived_key(self._secret, number)) if number < self._end else None


def block_of(number: int) -> int:
    """The block of a data key."""
    return (number - 1) // BLOCK + 1


class DataKeyNumbers:
    """The numbers of data keys, of which most are stored as blocks only."""

    def __init__(self, blocks: Collection[int], others: Collection[int] = ()) -> None:
        self._blocks = blocks
        self._others = others

    def __contains__(self, number: object) -> bool:
        return isinstance(number, int) and (
            number in self._others or block_of(number) in self._blocks
        )


def numbers_in(records: Iterable[str]) -> DataKeyNumbers:
    """Those of a cluster, by the keys of its records."""
    begin = PREFIX + DATA
    return DataKeyNumbers(
        {int(key.removeprefix(begin)) for key in records if key.startswith(begin)}
    )


def row_of(account: str, name: str) -> str:
    """The rest of a named key's key."""
    return f"{account}/{name}"


def put_named_key(draft: Draft, row: str, stored: StoredNamedKey) -> None:
    """Write a named key."""
    draft.put(KEYS + row, msgspec.json.encode(stored))


def stored_named_key(draft: Draft, row: str) -> StoredNamedKey:
    """A named key as it is stored. Raises SealBroken."""
    value = draft.value(KEYS + row)
    if value is None:
        raise SealBroken(f"{PREFIX}{KEYS}{row} is gone")
    return decoded(value, StoredNamedKey)


def decoded(value: bytes, kind: type[T]) -> T:
    """The content of a record. Raises SealBroken."""
    try:
        return msgspec.json.decode(value, type=kind)
    except ValueError as error:
        raise SealBroken(" ".join(str(error).split())) from error
