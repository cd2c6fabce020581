"""Keys, users and access keys of a cluster as those of a single host, for a restore.

A cluster's root key, which is under the master key, wraps its secrets and versions; on a single
host the master key does. What these wrap stays as it is, blocks of data keys included.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

from auth.envelope import NONCE_BYTES, SealBroken, WrappingKey, derived_key
from cluster.clock import Entropy
from cluster.keys.identity_records import IdentityRows
from cluster.keys.keyring import CREDENTIALS, DIGESTS, data_key_of, version_of
from cluster.keys.master_key import WrongMasterKey
from cluster.keys.shared_identities import identities_in
from cluster.keys.shared_key_records import (
    BLOCK,
    DATA,
    KEYS,
    PREFIX,
    ROOT,
    SECRETS,
    StoredBlock,
    StoredNamedKey,
    decoded,
)
from cluster.keys.sqlite_identities import FILE_NAME as IDENTITIES_FILE
from cluster.keys.sqlite_identities import SqliteIdentities
from cluster.keys.sqlite_keyring import FILE_NAME as KEYRING_FILE
from cluster.keys.sqlite_keyring import open_file


def write_keyring(
    data: Path, records: Mapping[str, bytes], master: bytes, entropy: Entropy
) -> None:
    """Make the keyring of a data folder from a cluster's records.

    Raises WrongMasterKey if they are under another master key, SealBroken if they are damaged,
    sqlite3.Error, OSError.
    """
    with closing(open_file(data / KEYRING_FILE)) as database, database:
        database.execute("BEGIN IMMEDIATE")
        _Copy(records, master, entropy, database).run()


def write_identities(data: Path, records: Mapping[str, bytes]) -> None:
    """Make the users and access keys of a data folder from a cluster's records. Raises
    IdentitiesUnreadable, sqlite3.Error."""
    users, keys, uses = identities_in(records)

    def put_all(rows: IdentityRows) -> None:
        for user in users:
            rows.put_user(user)
        for key in keys:
            rows.put_key(key)

    with closing(SqliteIdentities(data / IDENTITIES_FILE)) as made:
        made.change(put_all)
        made.uses.write(uses, {key.access_key_id for key in keys})


class _Copy:
    """A cluster's keys on their way into a file, whose transaction has begun."""

    def __init__(
        self,
        records: Mapping[str, bytes],
        master: bytes,
        entropy: Entropy,
        database: sqlite3.Connection,
    ) -> None:
        """Raises WrongMasterKey."""
        self._records = records
        self._master = WrappingKey(master)
        self._entropy = entropy
        self._database = database
        self._versions: dict[int, WrappingKey] = {}
        try:
            self._root = WrappingKey(self._master.unwrap(self._value(ROOT), ROOT))
        except SealBroken as error:
            raise WrongMasterKey("the backup's keys are not under this master key") from error

    def _value(self, key: str) -> bytes:
        value = self._records.get(PREFIX + key)
        if value is None:
            raise SealBroken(f"{PREFIX}{key} is missing")
        return value

    def _below(self, prefix: str) -> dict[str, bytes]:
        begin = PREFIX + prefix
        return {
            key.removeprefix(begin): value
            for key, value in self._records.items()
            if key.startswith(begin)
        }

    def _put(self, table: str, *values: object) -> None:
        marks = ",".join("?" * len(values))
        self._database.execute(f"INSERT INTO {table} VALUES ({marks})", values)

    def _moved(self, wrapped: bytes, purpose: str) -> bytes:
        """A key that was under the root key, under the master key."""
        secret = self._root.unwrap(wrapped, purpose)
        return self._master.wrap(secret, purpose, self._entropy.secret(NONCE_BYTES))

    def run(self) -> None:
        """Raises SealBroken, sqlite3.Error."""
        for purpose in (DIGESTS, CREDENTIALS):
            self._put("secrets", purpose, self._moved(self._value(SECRETS + purpose), purpose))
        for row, value in self._below(KEYS).items():
            self._put_named_key(row, decoded(value, StoredNamedKey))
        blocks = {
            int(number): decoded(value, StoredBlock) for number, value in self._below(DATA).items()
        }
        for number, block in blocks.items():
            made_at_ms = block.created_at_ms
            self._put("blocks", number, block.version, block.wrapped, made_at_ms)
        if blocks:
            self._put_last_data_key(max(blocks), blocks[max(blocks)])

    def _put_last_data_key(self, number: int, block: StoredBlock) -> None:
        """Write the last data key of the last block: the numbers of new ones follow."""
        version, last = block.version, number * BLOCK
        wrapping, purpose = self._versions[version], data_key_of(version)
        secret = derived_key(wrapping.unwrap(block.wrapped, purpose), last)
        wrapped = wrapping.wrap(secret, purpose, self._entropy.secret(NONCE_BYTES))
        self._put("data_keys", last, version, wrapped, block.created_at_ms)

    def _put_named_key(self, row: str, stored: StoredNamedKey) -> None:
        account, name = row.split("/", 1)
        key_id, made_at_ms = stored.key_id, stored.created_at_ms
        own_row = key_id if account else name
        self._put("named_keys", own_row, key_id, stored.enabled, made_at_ms)
        if account:
            self._put("owners", key_id, account, name)
        for grantee, operations in stored.grants.items():
            self._put("grants", key_id, grantee, " ".join(operations), made_at_ms)
        for version, wrapped in stored.versions.items():
            self._versions[version] = WrappingKey(self._root.unwrap(wrapped, version_of(version)))
            moved = self._moved(wrapped, version_of(version))
            self._put("versions", version, own_row, moved, made_at_ms)
