"""Users and access keys of a single host, in a SQLite file beside the catalog, with a second copy.

Other processes change the file: commands do, while a server runs.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from cluster.keys.identity_records import (
    IdentitiesUnreadable,
    IdentityRows,
    KeyUses,
    StoredKey,
    StoredUser,
)
from cluster.keys.key_uses import KeyUseFile
from storage.copies.second_copy import open_with_copy, tables

FILE_NAME = "identities.sqlite"
_USES_FILE = "key_uses.json"
_SCHEMA = """
CREATE TABLE IF NOT EXISTS access_keys (
    access_key_id TEXT PRIMARY KEY, secret BLOB NOT NULL, account TEXT NOT NULL,
    principal TEXT NOT NULL, user TEXT, enabled INTEGER NOT NULL, created_at_ms INTEGER NOT NULL,
    session_token BLOB, expires_at_ms INTEGER);
CREATE TABLE IF NOT EXISTS users (
    account TEXT NOT NULL, name TEXT NOT NULL, user_id TEXT NOT NULL UNIQUE, tags TEXT NOT NULL,
    created_at_ms INTEGER NOT NULL, PRIMARY KEY (account, name));
CREATE TABLE IF NOT EXISTS user_policies (
    account TEXT NOT NULL, user TEXT NOT NULL, name TEXT NOT NULL, document TEXT NOT NULL,
    PRIMARY KEY (account, user, name));
"""
_KEYS = (
    "SELECT access_key_id, secret, account, principal, created_at_ms, user, enabled, "
    "session_token, expires_at_ms FROM access_keys"
)
_USERS = "SELECT account, name, user_id, created_at_ms, tags FROM users"

T = TypeVar("T")


class SqliteIdentities:
    """See IdentityRecords and IdentityRows. Writes raise sqlite3.Error."""

    def __init__(self, file: Path) -> None:
        """Open or create. Raises IdentitiesUnreadable."""
        try:
            self._database = open_with_copy(file, tables(_SCHEMA))
        except (OSError, sqlite3.Error) as error:
            raise IdentitiesUnreadable(f"cannot open users and keys in {file}: {error}") from error
        self._seen_version = self._version()
        self.uses: KeyUses = KeyUseFile(file.with_name(_USES_FILE))

    def close(self) -> None:
        """Close the file."""
        self._database.close()

    def changed(self) -> bool:
        """See IdentityRecords."""
        version = self._version()
        changed, self._seen_version = version != self._seen_version, version
        return changed

    def catch_up(self) -> None:
        """See IdentityRecords."""

    def look_again(self) -> None:
        """See IdentityRecords."""
        self._seen_version = -1

    def _version(self) -> int:
        version: int = self._database.execute("PRAGMA data_version").fetchone()[0]
        return version

    def read(self) -> IdentityRows:
        """See IdentityRecords."""
        return self

    def change(self, decide: Callable[[IdentityRows], T]) -> T:
        """See IdentityRecords."""
        self._database.execute("BEGIN IMMEDIATE")
        with self._database:
            return decide(self)

    def _rows(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        try:
            return self._database.execute(query, values).fetchall()
        except sqlite3.Error as error:
            raise IdentitiesUnreadable(f"cannot read users and keys: {error}") from error

    # -- access keys -------------------------------------------------------------------------------

    def key(self, access_key_id: str) -> StoredKey | None:
        """See IdentityRows."""
        found = self._rows(f"{_KEYS} WHERE access_key_id = ?", access_key_id)
        return _key(found[0]) if found else None

    def all_keys(self) -> list[StoredKey]:
        """See IdentityRows."""
        return [_key(row) for row in self._rows(f"{_KEYS} ORDER BY created_at_ms, access_key_id")]

    def put_key(self, key: StoredKey) -> None:
        """See IdentityRows."""
        self._database.execute(
            "INSERT INTO access_keys VALUES (?,?,?,?,?,?,?,?,?) ON CONFLICT (access_key_id) "
            "DO UPDATE SET secret = excluded.secret, account = excluded.account, "
            "principal = excluded.principal, user = excluded.user, enabled = excluded.enabled, "
            "created_at_ms = excluded.created_at_ms, session_token = excluded.session_token, "
            "expires_at_ms = excluded.expires_at_ms",
            (
                key.access_key_id,
                key.secret,
                key.account,
                key.principal,
                key.user,
                key.enabled,
                key.created_at_ms,
                key.session_token,
                key.expires_at_ms,
            ),
        )

    def remove_key(self, access_key_id: str) -> None:
        """See IdentityRows."""
        self._database.execute("DELETE FROM access_keys WHERE access_key_id = ?", (access_key_id,))

    def note_first_key(self, access_key_id: str) -> None:
        """See IdentityRows: the file's lock sees to it."""

    # -- users -------------------------------------------------------------------------------------

    def user(self, account: str, name: str) -> StoredUser | None:
        """See IdentityRows."""
        found = self._rows(f"{_USERS} WHERE account = ? AND name = ?", account, name)
        policies = "SELECT name, document FROM user_policies WHERE account = ? AND user = ?"
        documents = dict(self._rows(f"{policies} ORDER BY name", account, name))
        return _user(found[0], documents) if found else None

    def all_users(self) -> list[StoredUser]:
        """See IdentityRows."""
        policies: dict[tuple[str, str], dict[str, str]] = {}
        query = "SELECT account, user, name, document FROM user_policies ORDER BY name"
        for account, user, name, document in self._rows(query):
            policies.setdefault((account, user), {})[name] = document
        rows = self._rows(f"{_USERS} ORDER BY account, name")
        return [_user(row, policies.get(row[:2], {})) for row in rows]

    def put_user(self, user: StoredUser) -> None:
        """See IdentityRows."""
        owner = (user.account, user.name)
        there = self.user(*owner)
        tags = json.dumps(user.tags)
        if there is None:
            values = (*owner, user.user_id, tags, user.created_at_ms)
            self._database.execute("INSERT INTO users VALUES (?,?,?,?,?)", values)
        elif there.tags != user.tags:
            change = "UPDATE users SET tags = ? WHERE account = ? AND name = ?"
            self._database.execute(change, (tags, *owner))
        before = {} if there is None else there.policies
        for name in before.keys() - user.policies.keys():
            removal = "DELETE FROM user_policies WHERE account = ? AND user = ? AND name = ?"
            self._database.execute(removal, (*owner, name))
        for name, document in user.policies.items():
            if before.get(name) != document:
                self._database.execute(
                    "INSERT OR REPLACE INTO user_policies VALUES (?,?,?,?)",
                    (*owner, name, document),
                )

    def remove_user(self, user: StoredUser) -> None:
        """See IdentityRows."""
        owner = (user.account, user.name)
        self._database.execute("DELETE FROM users WHERE account = ? AND name = ?", owner)
        self._database.execute("DELETE FROM user_policies WHERE account = ? AND user = ?", owner)


def _key(row: tuple[Any, ...]) -> StoredKey:
    key_id, secret, account, principal, created_at_ms, user, enabled, token, expires_at_ms = row
    return StoredKey(
        key_id,
        secret,
        account,
        principal,
        created_at_ms,
        user,
        bool(enabled),
        token,
        expires_at_ms,
    )


def _user(row: tuple[Any, ...], policies: dict[str, str]) -> StoredUser:
    account, name, user_id, created_at_ms, tags = row
    return StoredUser(account, name, user_id, created_at_ms, json.loads(tags), policies)
