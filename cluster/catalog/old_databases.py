"""The databases of earlier versions, as records: one of queues, one of keys, one of users.

catalog.sqlite      tables for each kind of record (`catalog_0_1.py`), or records without prefix
keyring.sqlite      keys; the master key wraps secrets and versions itself
identities.sqlite   users and access keys
"""

from __future__ import annotations

import json
import sqlite3
from collections import defaultdict
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec

from cluster.catalog.catalog_0_1 import is_0_1, records_0_1
from cluster.catalog.catalog_records import PREFIX as CATALOG
from cluster.coordination.records import COUNTERS
from cluster.coordination.sqlite_coordination import read_records
from cluster.keys.identity_records import KEYS as ACCESS_KEYS
from cluster.keys.identity_records import PREFIX as IDENTITIES
from cluster.keys.identity_records import USERS, StoredKey, StoredUser
from cluster.keys.key_records import (
    BLOCKS,
    DATA,
    KEYS,
    SECRETS,
    VERSIONS,
    StoredBlock,
    StoredNamedKey,
    block_of,
    row_of,
)
from cluster.keys.key_records import PREFIX as KEYRING
from storage.copies.second_copy import copy_of, is_there

CATALOG_FILE = "catalog.sqlite"
Connect = Callable[[Path], sqlite3.Connection]


def old_records(data: Path, connect: Connect) -> dict[str, bytes]:
    """The records in these databases of a data folder; none without a catalog. Raises
    sqlite3.Error, also for a file that is missing."""
    if not is_there(data / CATALOG_FILE):
        return {}
    found: dict[str, bytes] = {}
    for name, (prefix, read) in DATABASES.items():
        if not is_there(data / name):
            reason = f"{data} has queues, but its {name} is missing. Restore a backup"
            raise sqlite3.DatabaseError(reason)
        try:
            with closing(connect(data / name)) as database:
                found |= {prefix + key: value for key, value in read(database).items()}
        except sqlite3.Error as error:
            raise sqlite3.DatabaseError(f"{data / name}: {error}") from error
    return found


def remove_old(data: Path) -> None:
    """Remove these databases, whose records are elsewhere by now. Raises OSError."""
    for name in DATABASES:
        for file in (data / name, copy_of(data / name)):
            for ending in ("", "-wal", "-shm"):
                file.with_name(file.name + ending).unlink(missing_ok=True)
    (data / "key_uses.json").unlink(missing_ok=True)


def _catalog(database: sqlite3.Connection) -> dict[str, bytes]:
    if is_0_1(database):
        return records_0_1(database)
    return {record.key: record.value for record in read_records(database).records}


def _keyring(database: sqlite3.Connection) -> dict[str, bytes]:
    there = {name for (name,) in database.execute("SELECT name FROM sqlite_master")}

    def rows(table: str, columns: str) -> list[tuple[Any, ...]]:
        return (
            database.execute(f"SELECT {columns} FROM {table}").fetchall() if table in there else []
        )

    owners = {key_id: (account, name) for key_id, account, name in rows("owners", "*")}
    versions: dict[str, dict[int, bytes]] = defaultdict(dict)
    for version, name, wrapped in rows("versions", "version, name, wrapped"):
        versions[name][version] = wrapped
    grants: dict[str, dict[str, tuple[str, ...]]] = defaultdict(dict)
    for key_id, grantee, operations in rows("grants", "key_id, grantee, operations"):
        grants[key_id][grantee] = tuple(operations.split())
    found = {SECRETS + purpose: wrapped for purpose, wrapped in rows("secrets", "*")}
    for name, key_id, enabled, at_ms in rows("named_keys", "name, key_id, enabled, created_at_ms"):
        stored = StoredNamedKey(key_id, at_ms, bool(enabled), versions[name], grants[key_id])
        found[KEYS + row_of(*owners.get(key_id, ("", name)))] = msgspec.json.encode(stored)
    blocks = {
        number: StoredBlock(version, wrapped, at_ms)
        for number, version, wrapped, at_ms in rows(
            "blocks", "number, version, wrapped, created_at_ms"
        )
    }
    for number, version, wrapped, at_ms in rows(
        "data_keys", "number, version, wrapped, created_at_ms"
    ):
        block = blocks.setdefault(block_of(number), StoredBlock(0, b"", at_ms))
        if not block.wrapped:  # else it is derived as well
            block.keys[number] = version, wrapped
    found |= {f"{DATA}{number}": msgspec.json.encode(block) for number, block in blocks.items()}
    last = max((version for each in versions.values() for version in each), default=0)
    sequence = database.execute(
        "SELECT seq FROM sqlite_sequence WHERE name = 'versions'"
    ).fetchone()
    found[COUNTERS + VERSIONS] = b"%d" % max(last, sequence[0] if sequence else 0)
    found[COUNTERS + BLOCKS] = b"%d" % max(blocks, default=0)
    return found


def _identities(database: sqlite3.Connection) -> dict[str, bytes]:
    policies: dict[tuple[str, str], dict[str, str]] = defaultdict(dict)
    for account, user, name, document in database.execute(
        "SELECT account, user, name, document FROM user_policies"
    ):
        policies[account, user][name] = document
    found = {}
    for account, name, user_id, at_ms, tags in database.execute(
        "SELECT account, name, user_id, created_at_ms, tags FROM users"
    ):
        user = StoredUser(account, name, user_id, at_ms, json.loads(tags), policies[account, name])
        found[f"{USERS}{account}/{name}"] = msgspec.json.encode(user)
    for row in database.execute(
        "SELECT access_key_id, secret, account, principal, created_at_ms, user, enabled, "
        "session_token, expires_at_ms FROM access_keys"
    ):
        key = StoredKey(*row)
        key = msgspec.structs.replace(key, enabled=bool(key.enabled))
        found[ACCESS_KEYS + key.access_key_id] = msgspec.json.encode(key)
    return found


DATABASES: dict[str, tuple[str, Callable[[sqlite3.Connection], dict[str, bytes]]]] = {
    CATALOG_FILE: (CATALOG, _catalog),
    "keyring.sqlite": (KEYRING, _keyring),
    "identities.sqlite": (IDENTITIES, _identities),
}
