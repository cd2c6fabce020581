"""The records of a keyring.

root                    the root key, wrapped under the master key; wraps secrets and versions
secrets/PURPOSE         a secret
keys/ACCOUNT/NAME       a named key with its versions and grants
data/NUMBER             a block of data keys, wrapped under a version
ids/version, ids/block  the numbers issued last

A keyring of version 0.1 has no root until it is opened (`keyring.py`): the master key itself wraps
secrets and versions. Its data keys were wrapped one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

import msgspec

from auth.envelope import DataKey, SealBroken, data_key, derived_key
from cluster.coordination.records import Draft

PREFIX = "keyring/"
"""Prefix of all these records among those of a host or a cluster."""
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
    """A block of data keys: one secret, from which they are derived, or `keys` of version 0.1."""

    version: int
    wrapped: bytes
    created_at_ms: int
    keys: dict[int, tuple[int, bytes]] = {}
    """Data keys by number, each with its own version and wrapped by itself."""

    def wrapped_key(self, number: int) -> tuple[int, bytes] | None:
        """The version, and what it wraps, for a data key; None if there is no such key."""
        return self.keys.get(number) if self.keys else (self.version, self.wrapped)

    def versions(self) -> set[int]:
        """The versions that it is under."""
        return {version for version, _ in self.keys.values()} or {self.version}

    def wrapped_anew(self, again: Callable[[int, bytes], tuple[int, bytes]]) -> StoredBlock:
        """The block with each version, and what that wraps, as `again` makes them."""
        if self.keys:
            keys = {number: again(*wrapped) for number, wrapped in self.keys.items()}
            return msgspec.structs.replace(self, keys=keys)
        version, wrapped = again(self.version, self.wrapped)
        return msgspec.structs.replace(self, version=version, wrapped=wrapped)

    def secret_of(self, number: int, secret: bytes) -> bytes:
        """The secret of a data key, from what was wrapped."""
        return secret if self.keys else derived_key(secret, number)


class OwnBlock:
    """The block from which this process makes data keys under one named key."""

    def __init__(self, number: int, version: int, secret: bytes) -> None:
        self.number = number
        self.version = version
        self.first_count = 0
        """See `DataKey.count`."""
        self._secret = secret
        self._next, self._end = numbers_of(number).start, numbers_of(number).stop

    def next_key(self) -> DataKey | None:
        """A data key that was never issued before; None if all were."""
        number, self._next = self._next, self._next + 1
        if number >= self._end:
            return None
        key = data_key(number, derived_key(self._secret, number))
        key.count = self.first_count
        return key


def block_of(number: int) -> int:
    """The block of a data key."""
    return (number - 1) // BLOCK + 1


def numbers_of(block: int) -> range:
    """The data keys of a block."""
    return range((block - 1) * BLOCK + 1, block * BLOCK + 1)


class DataKeyNumbers:
    """The numbers of data keys, of which most are stored as blocks only."""

    def __init__(self, records: Mapping[str, bytes]) -> None:
        """Those in a copy of all records of a host or a cluster. Raises SealBroken."""
        begin = PREFIX + DATA
        self._blocks = {
            int(key.removeprefix(begin)): decoded(value, StoredBlock)
            for key, value in records.items()
            if key.startswith(begin)
        }

    def __contains__(self, number: object) -> bool:
        assert isinstance(number, int)
        block = self._blocks.get(block_of(number))
        return block is not None and block.wrapped_key(number) is not None


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


def data_key_of(version: int) -> str:
    """The purpose of a data key under a version."""
    return f"data key of version {version}"


def version_of(version: int) -> str:
    """The purpose of a version."""
    return f"version {version}"


def decoded(value: bytes, kind: type[T]) -> T:
    """The content of a record. Raises SealBroken."""
    try:
        return msgspec.json.decode(value, type=kind)
    except ValueError as error:
        raise SealBroken(" ".join(str(error).split())) from error
