"""The keyring of a data folder, in a SQLite file with a second copy.

`holdfast keys` changes it while a server runs; the server checks once a second. Only `new_data_key`
writes while requests are served; call it in a thread.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Container
from pathlib import Path

from auth.envelope import (
    BUILT_IN_KEY,
    KEY_BYTES,
    DataKey,
    SealBroken,
    WrappingKey,
    derived_key,
)
from cluster.clock import Clock, Entropy
from cluster.keys.key_owners import SCHEMA, Grant, NamedKey, adopt, policy_of, read_keys
from cluster.keys.keyring import CREDENTIALS, DIGESTS, Keyring, Secrets, data_key_of, version_of
from cluster.keys.master_key import KeysUnusable, WrongMasterKey
from cluster.keys.shared_key_records import DataKeyNumbers, block_of
from storage.copies.second_copy import open_with_copy, tables
from storage.files.refusing_disk import naming_disk

FILE_NAME = "keyring.sqlite"

_SCHEMA = """
CREATE TABLE IF NOT EXISTS secrets (purpose TEXT PRIMARY KEY, wrapped BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS named_keys (
    name TEXT PRIMARY KEY, key_id TEXT NOT NULL UNIQUE, enabled INTEGER NOT NULL,
    created_at_ms INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS versions (
    version INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL, wrapped BLOB NOT NULL,
    created_at_ms INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS data_keys (
    number INTEGER PRIMARY KEY AUTOINCREMENT, version INTEGER NOT NULL, wrapped BLOB NOT NULL,
    created_at_ms INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS blocks (
    number INTEGER PRIMARY KEY, version INTEGER NOT NULL, wrapped BLOB NOT NULL,
    created_at_ms INTEGER NOT NULL);
"""
"""Blocks stand for the data keys of the cluster that a folder was restored from."""


def open_file(file: Path) -> sqlite3.Connection:
    """Open or create the file. Raises OSError, sqlite3.Error."""
    return open_with_copy(file, tables(_SCHEMA + SCHEMA))


def numbers_in(database: sqlite3.Connection) -> Container[int]:
    """The numbers of all data keys in the file. Raises sqlite3.Error."""
    own = {number for (number,) in database.execute("SELECT number FROM data_keys")}
    has_blocks = database.execute("SELECT 1 FROM sqlite_master WHERE name = 'blocks'").fetchone()
    blocks = database.execute("SELECT number FROM blocks") if has_blocks else ()
    return DataKeyNumbers({number for (number,) in blocks}, own)


class SqliteKeyring(Keyring):
    """See Keyring."""

    def __init__(
        self,
        file: Path,
        master: bytes,
        clock: Clock,
        entropy: Entropy,
        read_master: Callable[[], bytes] | None = None,
        owner: str | None = None,
    ) -> None:
        """Open or create the file. Raises KeysUnusable.

        `read_master` gives the master key once another process has changed it; it may raise
        KeysUnusable. `owner` is the account that gets the keys of version 0.1; without it they stay
        without an owner.
        """
        super().__init__(clock, entropy)
        self._read_master: Callable[[], bytes] | None = None
        self._master = WrappingKey(master)
        self._owner = owner or ""
        try:
            self._database = open_file(file)
        except (OSError, sqlite3.Error) as error:
            raise KeysUnusable(f"cannot open the keys in {file}: {error}") from error
        try:
            with naming_disk(file.parent):
                self.digest_key = self._secret(DIGESTS)
                self.secrets = Secrets(WrappingKey(self._secret(CREDENTIALS)), entropy)
                if self._owner:
                    adopt(self._database, self._owner)
                self._load()
                if BUILT_IN_KEY not in self._keys:
                    self.add(BUILT_IN_KEY, "")
        except SealBroken as error:
            self._database.close()
            raise WrongMasterKey(f"the keys in {file} are not under this master key") from error
        except sqlite3.Error as error:
            self._database.close()
            raise KeysUnusable(f"cannot read the keys in {file}: {error}") from error
        self._seen_version = self._file_version()
        self._read_master = read_master

    def close(self) -> None:
        """See Keyring."""
        self._database.close()

    # -- named keys --------------------------------------------------------------------------------

    def add(self, name: str, account: str) -> NamedKey:
        """See Keyring."""
        with self._lock:
            self._check_free(name, account)
            key_id = self._new_key_id()
            row, now_ms = key_id if account else name, self._now_ms()
            with self._database:
                self._database.execute("BEGIN IMMEDIATE")
                self._database.execute(
                    "INSERT INTO named_keys VALUES (?,?,1,?)", (row, key_id, now_ms)
                )
                if account:
                    owner = (key_id, account, name)
                    self._database.execute("INSERT INTO owners VALUES (?,?,?)", owner)
                self._add_version(row, now_ms)
            self._load()
            return self._keys[row]

    def rotate(self, name: str, account: str | None = None) -> None:
        """See Keyring."""
        with self._lock:
            with self._database:
                self._database.execute("BEGIN IMMEDIATE")
                self._add_version(self.named(name, account).row, self._now_ms())
            self._load()

    def rewrap(self, name: str, account: str | None = None) -> int:
        """See Keyring."""
        with self._lock:
            with self._database:
                self._database.execute("BEGIN IMMEDIATE")
                self._load()
                named = self.named(name, account)
                newest = named.version
                rewrapped = sum(
                    self._rewrap(table, named, newest) for table in ("data_keys", "blocks")
                )
                self._database.execute(
                    "DELETE FROM versions WHERE name = ? AND version <> ?", (named.row, newest)
                )
            self._load()
            return rewrapped

    def _rewrap(self, table: str, named: NamedKey, newest: int) -> int:
        rows = self._database.execute(
            f"SELECT number, version, wrapped FROM {table} WHERE version IN "
            "(SELECT version FROM versions WHERE name = ? AND version <> ?)",
            (named.row, newest),
        ).fetchall()
        cipher = self._wrapping[newest][1]
        for number, version, wrapped in rows:
            secret = self._wrapping[version][1].unwrap(wrapped, data_key_of(version))
            again = self._wrapped(cipher, secret, data_key_of(newest))
            self._database.execute(
                f"UPDATE {table} SET version = ?, wrapped = ? WHERE number = ?",
                (newest, again, number),
            )
        return len(rows)

    def set_enabled(self, name: str, enabled: bool, account: str | None = None) -> None:
        """See Keyring."""
        row = self._key_to_switch(name, account).row
        self._change("UPDATE named_keys SET enabled = ? WHERE name = ?", enabled, row)

    def grant(self, name: str, grant: Grant, account: str | None = None) -> None:
        """See Keyring."""
        named = self._key_to_grant(name, grant, account)
        change = "INSERT OR REPLACE INTO grants VALUES (?,?,?,?)"
        operations = " ".join(sorted(set(grant.operations)))
        self._change(change, named.key_id, grant.grantee, operations, self._now_ms())

    def revoke(self, name: str, grantee: str, account: str | None = None) -> None:
        """See Keyring."""
        named = self._key_to_revoke(name, grantee, account)
        change = "DELETE FROM grants WHERE key_id = ? AND grantee = ?"
        self._change(change, named.key_id, grantee)

    def _change(self, statement: str, *values: object) -> None:
        with self._lock:
            self._database.execute(statement, values)
            self._load()

    def change_master(self, master: bytes, keep: Callable[[], None] = lambda: None) -> None:
        """See Keyring."""
        new = WrappingKey(master)
        with self._lock, self._database:
            self._database.execute("BEGIN IMMEDIATE")
            for table, key, purpose_of in (
                ("secrets", "purpose", str),
                ("versions", "version", version_of),
            ):
                rows = self._database.execute(f"SELECT {key}, wrapped FROM {table}").fetchall()
                for name, wrapped in rows:
                    purpose = purpose_of(name)
                    secret = self._master.unwrap(wrapped, purpose)
                    again = self._wrapped(new, secret, purpose)
                    self._database.execute(
                        f"UPDATE {table} SET wrapped = ? WHERE {key} = ?", (again, name)
                    )
            keep()
        self._master = new

    # -- data keys ---------------------------------------------------------------------------------

    def new_data_key(self, named: NamedKey) -> DataKey:
        """See Keyring."""
        secret = self._entropy.secret(KEY_BYTES)
        newest = "SELECT max(version) FROM versions WHERE name = ?"
        with self._lock:
            with self._database:
                self._database.execute("BEGIN IMMEDIATE")
                (version,) = self._database.execute(newest, (named.row,)).fetchone()
                if version not in self._wrapping:
                    self._load()
                wrapped = self._wrapped(self._wrapping[version][1], secret, data_key_of(version))
                number = self._database.execute(
                    "INSERT INTO data_keys (version, wrapped, created_at_ms) VALUES (?,?,?)",
                    (version, wrapped, self._now_ms()),
                ).lastrowid
            assert number is not None
            return self._kept(number, self._keys[named.row], DataKey(number, secret))[1]

    def data_key(self, number: int) -> tuple[NamedKey, DataKey]:
        """See Keyring."""
        known = self._data_keys.get(number)
        if known is not None:
            return known
        with self._lock:
            query = "SELECT version, wrapped FROM {} WHERE number = ?"
            row = self._database.execute(query.format("data_keys"), (number,)).fetchone()
            block = (block_of(number),)
            found = row or self._database.execute(query.format("blocks"), block).fetchone()
            if found is None:
                raise SealBroken(f"there is no data key {number}")
            version, wrapped = found
            if version not in self._wrapping:
                self._load()
            if version not in self._wrapping:
                raise SealBroken(f"the key of data key {number} is gone")
            named, wrapping = self._wrapping[version]
            secret = wrapping.unwrap(wrapped, data_key_of(version))
            if row is None:
                secret = derived_key(secret, number)
            return self._kept(number, named, DataKey(number, secret))

    # -- the file ----------------------------------------------------------------------------------

    def reload_if_changed(self) -> bool:
        """See Keyring."""
        with self._lock:
            version = self._file_version()
            if version == self._seen_version:
                return False
            self._load()
            self._seen_version = version
            return True

    def catch_up(self) -> None:
        """See Keyring."""

    def _load(self) -> None:
        """Load the named keys and their versions. Known ones are changed in place: data keys refer
        to them."""
        named_keys, versions, grants = read_keys(self._database)
        for row, key_id, enabled, created_at_ms, account, name in named_keys:
            known = self._keys.get(row)
            if known is None or known.key_id != key_id:
                known = NamedKey(name or row, key_id, row, created_at_ms=created_at_ms)
                known.account = account or ("" if row == BUILT_IN_KEY else self._owner)
                self._keys[row] = self._names[known.account, known.name] = known
            known.enabled = bool(enabled)
            known.versions = 0
            known.grants = grants.get(key_id, ())
            known.policy = policy_of(known.grants)
        there = set()
        for version, row, wrapped in versions:
            there.add(version)
            named = self._keys[row]
            if version not in self._wrapping:
                secret = self._unwrap(wrapped, version_of(version))
                self._wrapping[version] = (named, WrappingKey(secret))
            named.version = version
            named.versions += 1
        for version in self._wrapping.keys() - there:
            del self._wrapping[version]

    def _add_version(self, row: str, now_ms: int) -> None:
        self._unwrapped(DIGESTS)  # a version under an earlier master key would be unreadable
        version = self._database.execute(
            "INSERT INTO versions (name, wrapped, created_at_ms) VALUES (?,?,?)",
            (row, b"", now_ms),
        ).lastrowid
        assert version is not None
        wrapped = self._new_wrapped(self._master, version_of(version))
        self._database.execute(
            "UPDATE versions SET wrapped = ? WHERE version = ?", (wrapped, version)
        )

    def _secret(self, purpose: str) -> bytes:
        """The secret for a purpose, made at first use; if two processes make it, the first one's
        counts."""
        fresh = self._new_wrapped(self._master, purpose)
        self._database.execute("INSERT OR IGNORE INTO secrets VALUES (?,?)", (purpose, fresh))
        return self._unwrapped(purpose)

    def _unwrapped(self, purpose: str) -> bytes:
        query = "SELECT wrapped FROM secrets WHERE purpose = ?"
        (wrapped,) = self._database.execute(query, (purpose,)).fetchone()
        return self._unwrap(wrapped, purpose)

    def _unwrap(self, wrapped: bytes, purpose: str) -> bytes:
        try:
            return self._master.unwrap(wrapped, purpose)
        except SealBroken as error:
            if self._read_master is None:
                raise
            try:
                changed = WrappingKey(self._read_master())
            except KeysUnusable:
                raise error from None
            secret = changed.unwrap(wrapped, purpose)
            self._master = changed
            return secret

    def _file_version(self) -> int:
        version: int = self._database.execute("PRAGMA data_version").fetchone()[0]
        return version
