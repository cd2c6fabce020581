"""Opens keys, users and access keys, for the node and for commands: those of the data folder, or
those of the cluster if the settings name an etcd."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

from cluster.catalog.sqlite_coordination import CATALOG_FILE
from cluster.clock import Clock, Entropy
from cluster.coordination.background_loop import BackgroundLoop
from cluster.coordination.coordination import Coordination
from cluster.coordination.shared_records import SharedRecords
from cluster.keys import shared_identities, shared_key_records
from cluster.keys.identity_records import IdentitiesUnreadable
from cluster.keys.identity_store import IdentityStore
from cluster.keys.keyring import Keyring, KeysAway, Secrets
from cluster.keys.master_key import FILE_NAME as MASTER_FILE
from cluster.keys.master_key import (
    NEW_FILE_NAME,
    KeysUnusable,
    WrongMasterKey,
    decode_master_key,
    folder_master_key,
    read_master_key,
)
from cluster.keys.shared_identities import SharedIdentities
from cluster.keys.shared_keyring import SharedKeyring
from cluster.keys.sqlite_identities import FILE_NAME as IDENTITIES_FILE
from cluster.keys.sqlite_identities import SqliteIdentities
from cluster.keys.sqlite_keyring import FILE_NAME, SqliteKeyring
from cluster.members.member_records import MembershipRefused
from sqs_api.settings.cluster_records import open_coordination
from sqs_api.settings.config import Settings
from storage.copies.second_copy import is_there
from storage.files.folder import sync_folder

COMMANDS, SERVICE = ".commands", ".service"
"""Processes of a host that write to the cluster's records."""


def open_keyring(
    settings: Settings,
    clock: Clock,
    entropy: Entropy,
    owner: str | None = None,
    writer: str = COMMANDS,
) -> Keyring:
    """Open or make the keys of the cluster, or of the settings' data folder, which exists; for
    `owner` see SqliteKeyring.

    Raises KeysUnusable.
    """
    if settings.etcd is not None:
        return _open_shared_keyring(settings, clock, entropy, writer)
    file = settings.data / FILE_NAME
    read_master = partial(_master_key, settings, entropy)
    master = read_master()
    try:
        return SqliteKeyring(file, master, clock, entropy, read_master, owner)
    except WrongMasterKey as error:
        new = settings.data / NEW_FILE_NAME
        if _given(settings) is not None or not new.exists():
            raise KeysUnusable(_expected(settings)) from error
        keyring = SqliteKeyring(file, read_master_key(new), clock, entropy, read_master, owner)
        new.replace(settings.data / MASTER_FILE)
        sync_folder(settings.data)
        return keyring


def _open_shared_keyring(
    settings: Settings, clock: Clock, entropy: Entropy, writer: str
) -> Keyring:
    """The keys of the cluster, under a given master key: made here, each host would have its own.

    Raises KeysUnusable.
    """
    master = given_master_key(settings)
    assert master is not None, "the settings are checked"
    open_records = partial(
        _coordination, settings, shared_key_records.PREFIX, clock, entropy, writer
    )
    records = _shared_records(open_records, KeysAway)
    try:
        return SharedKeyring(records, master, clock, entropy, founds=writer == SERVICE)
    except WrongMasterKey as error:
        wrong = f"{_given(settings)} is not the master key of cluster {settings.cluster}"
        raise KeysUnusable(
            f"{wrong}: expected is the one of its other hosts, or of the last holdfast keys "
            "change-master"
        ) from error


def _shared_records(
    open_records: Callable[[], Awaitable[Coordination]], away: type[Exception]
) -> SharedRecords:
    """Records with an event loop of their own. Raises `away`."""
    loop = BackgroundLoop("records")
    try:
        return SharedRecords(loop, open_records, away, on_close=loop.close)
    except MembershipRefused as error:
        raise away(str(error)) from error


async def _coordination(
    settings: Settings, prefix: str, clock: Clock, entropy: Entropy, writer: str
) -> Coordination:
    return open_coordination(settings, prefix, clock, entropy, writer)


def open_identities(
    settings: Settings,
    secrets: Secrets,
    clock: Clock,
    entropy: Entropy,
    writer: str = COMMANDS,
) -> IdentityStore:
    """Open or make the users and access keys of the cluster, or of a single host's file.

    Raises IdentitiesUnreadable, and KeysUnusable if a service's data folder lost them.
    """
    if settings.etcd is None:
        file = settings.data / IDENTITIES_FILE
        if writer == SERVICE:
            _check_not_lost(file)
        return IdentityStore(SqliteIdentities(file), secrets, clock, entropy)
    prefix = shared_identities.PREFIX
    open_records = partial(_coordination, settings, prefix, clock, entropy, writer)
    records = _shared_records(open_records, IdentitiesUnreadable)
    return IdentityStore(SharedIdentities(records), secrets, clock, entropy)


def _given(settings: Settings) -> str | None:
    """The name of the master key that the settings give; None if it is the folder's own."""
    if settings.master_key is not None:
        return "HOLDFAST_MASTER_KEY"
    return None if settings.master_key_file is None else f"master key {settings.master_key_file}"


def _expected(settings: Settings) -> str:
    """The refusal of a master key that does not fit."""
    given, own = _given(settings), settings.data / MASTER_FILE
    wrong = f"{given or own} is not the master key of {settings.data}"
    expected = "expected is the one of its first start, or of the last holdfast keys change-master"
    if given is not None and own.exists():
        expected += f"; without a given one, {own} is used"
    return f"{wrong}: {expected}"


def _master_key(settings: Settings, entropy: Entropy) -> bytes:
    """Refuse a folder that has messages but no keys, or keys sealed under another master key."""
    has_keys = is_there(settings.data / FILE_NAME)
    if not has_keys and is_there(settings.data / CATALOG_FILE):
        raise KeysUnusable(f"{settings.data} has queues, but their keys in {FILE_NAME} are missing")
    given = given_master_key(settings)
    if given is not None:
        return given
    return folder_master_key(settings.data, entropy, may_make=not has_keys)


def given_master_key(settings: Settings) -> bytes | None:
    """The master key that the settings give; None if it is the folder's own. Raises
    KeysUnusable."""
    if settings.master_key is not None:
        try:
            return decode_master_key(settings.master_key.get_secret_value())
        except ValueError as error:
            raise KeysUnusable(f"HOLDFAST_MASTER_KEY: {error}") from error
    if settings.master_key_file is not None:
        return read_master_key(settings.master_key_file)
    return None


def _check_not_lost(identities: Path) -> None:
    """Raise KeysUnusable for a folder that lost users and keys: it must not start with a new
    key."""
    if not is_there(identities) and is_there(identities.parent / CATALOG_FILE):
        raise KeysUnusable(
            f"{identities.parent} has queues, but its users and keys in {IDENTITIES_FILE} are "
            "missing; restore a backup, or make new ones with holdfast credentials add"
        )
