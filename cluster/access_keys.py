"""Access keys on disk: made at first start, managed by `holdfast credentials`, seen by a running server within a second.

They lie in a SQLite file of their own beside the catalog, since other processes change them. Secrets are encrypted under
`master.key`, a file that only the owner may read. Plain sqlite3: these calls happen at start, from the command line, and
when another process changed something; each is a few rows.
"""

from __future__ import annotations

import os
import sqlite3
from base64 import b32encode, urlsafe_b64encode
from collections.abc import Iterable
from contextlib import closing, suppress
from pathlib import Path

from cryptography.fernet import Fernet, InvalidToken

from auth.credentials import AccessKey
from cluster.clock import Clock, Entropy
from storage.folder import sync_folder

_ID_PREFIX = "AKIA"
_ID_RANDOM_BYTES = 10
_SECRET_BYTES = 30
_PRINCIPAL_PREFIX = "AIDA"
_SCHEMA = """
CREATE TABLE IF NOT EXISTS access_keys (
    access_key_id TEXT PRIMARY KEY, secret BLOB NOT NULL, account TEXT NOT NULL, principal TEXT NOT NULL,
    enabled INTEGER NOT NULL, created_at_ms INTEGER NOT NULL, session_token BLOB, expires_at_ms INTEGER)
"""
_COLUMNS = "access_key_id, secret, account, principal, enabled, session_token, expires_at_ms"


class AccessKeysUnreadable(Exception):
    """The keys cannot be read; the text says why in one line."""


class AccessKeyStore:
    """The access keys of a data folder."""

    def __init__(self, folder: Path, clock: Clock, entropy: Entropy) -> None:
        """Open or create. Raises AccessKeysUnreadable."""
        self._clock = clock
        self._entropy = entropy
        try:
            self._cipher = Fernet(_master_key(folder / "master.key", entropy))
            self._database = _open(folder / "access-keys.sqlite")
        except (OSError, ValueError, sqlite3.Error) as error:
            raise AccessKeysUnreadable(
                f"cannot open the access keys of {folder}: {error}"
            ) from error
        self._seen_version = self._version()

    def close(self) -> None:
        """Close the file."""
        self._database.close()

    def all(self) -> list[AccessKey]:
        """Every key, oldest first. Raises AccessKeysUnreadable if the master key is not theirs."""
        query = f"SELECT {_COLUMNS} FROM access_keys ORDER BY created_at_ms, access_key_id"
        with closing(self._database.execute(query)) as rows:
            return [self._key(row) for row in rows]

    def changed(self) -> bool:
        """Whether another process changed the file since the last call. Microseconds."""
        version = self._version()
        changed, self._seen_version = version != self._seen_version, version
        return changed

    def add(self, account: str, *, principal: str | None = None) -> AccessKey:
        """Make a key for an account; its secret is shown by no later call but `all`."""
        identity = b32encode(self._entropy.secret(_ID_RANDOM_BYTES)).decode()
        key = AccessKey(
            access_key_id=_ID_PREFIX + identity,
            secret_access_key=urlsafe_b64encode(self._entropy.secret(_SECRET_BYTES)).decode(),
            account=account,
            principal=principal or _PRINCIPAL_PREFIX + identity,
        )
        self._insert([key])
        return key

    def rotate(self, access_key_id: str) -> AccessKey | None:
        """Make a successor for the same user and disable the old key; None if there is no such key."""
        old = next((key for key in self.all() if key.access_key_id == access_key_id), None)
        if old is None:
            return None
        new = self.add(old.account, principal=old.principal)
        self.disable(access_key_id)
        return new

    def disable(self, access_key_id: str) -> bool:
        """Refuse a key from now on; False if there is no such key."""
        change = "UPDATE access_keys SET enabled = 0 WHERE access_key_id = ?"
        return self._database.execute(change, (access_key_id,)).rowcount > 0

    def _insert(self, keys: Iterable[AccessKey]) -> None:
        now_ms = int(self._clock.wall_s() * 1000)
        for key in keys:
            self._database.execute(
                "INSERT INTO access_keys VALUES (?,?,?,?,?,?,?,?)",
                (
                    key.access_key_id,
                    self._cipher.encrypt(key.secret_access_key.encode()),
                    key.account,
                    key.principal,
                    key.enabled,
                    now_ms,
                    None,
                    key.expires_at_ms,
                ),
            )

    def _key(self, row: tuple[str, bytes, str, str, int, bytes | None, int | None]) -> AccessKey:
        key_id, secret, account, principal, enabled, token, expires_at_ms = row
        try:
            return AccessKey(
                key_id,
                self._cipher.decrypt(secret).decode(),
                account,
                principal,
                bool(enabled),
                self._cipher.decrypt(token).decode() if token else None,
                expires_at_ms,
            )
        except InvalidToken as error:
            raise AccessKeysUnreadable(
                f"access key {key_id} was not stored under this master key"
            ) from error

    def _version(self) -> int:
        version: int = self._database.execute("PRAGMA data_version").fetchone()[0]
        return version


def _open(file: Path) -> sqlite3.Connection:
    """Open or create the database; nothing is left open if that fails."""
    database = sqlite3.connect(file, isolation_level=None)
    try:
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = FULL")
        database.execute(_SCHEMA)
    except BaseException:
        database.close()
        raise
    return database


def _master_key(file: Path, entropy: Entropy) -> bytes:
    """Read the key, or make it with no rights for others; a crash leaves either none or a whole one."""
    if not file.exists():
        draft = file.with_suffix(f".{os.getpid()}")
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(urlsafe_b64encode(entropy.secret(32)))
            stream.flush()
            os.fsync(stream.fileno())
        with suppress(FileExistsError):  # another process was first
            os.link(draft, file)
        draft.unlink()
        sync_folder(file.parent)
    return file.read_bytes()
