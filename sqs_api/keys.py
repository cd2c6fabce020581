"""Where a data folder's keys are opened, for the node and for commands."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from cluster.catalog import CATALOG_FILE
from cluster.clock import Clock, Entropy
from cluster.identity_store import FILE_NAME as IDENTITIES_FILE
from cluster.keyring import FILE_NAME, Keyring
from cluster.master_key import FILE_NAME as MASTER_FILE
from cluster.master_key import (
    NEW_FILE_NAME,
    KeysUnusable,
    decode_master_key,
    folder_master_key,
    read_master_key,
)
from sqs_api.config import Settings
from storage.folder import sync_folder


def open_keyring(settings: Settings, clock: Clock, entropy: Entropy) -> Keyring:
    """Open or make the keys of the settings' data folder, which exists. Raises KeysUnusable."""
    file = settings.data / FILE_NAME
    read_master = partial(_master_key, settings, entropy)
    master = read_master()
    try:
        return Keyring(file, master, clock, entropy, read_master)
    except KeysUnusable:
        new = settings.data / NEW_FILE_NAME
        if settings.master_key is not None or settings.master_key_file is not None:
            raise
        if not new.exists():
            raise
        keyring = Keyring(file, read_master_key(new), clock, entropy, read_master)
        new.replace(settings.data / MASTER_FILE)
        sync_folder(settings.data)
        return keyring


def _master_key(settings: Settings, entropy: Entropy) -> bytes:
    """A folder that has messages but no keys, or keys but not the one they are under, must not get others."""
    has_keys = (settings.data / FILE_NAME).exists()
    if not has_keys and (settings.data / CATALOG_FILE).exists():
        raise KeysUnusable(f"{settings.data} has queues, but their keys in {FILE_NAME} are missing")
    if settings.master_key is not None:
        try:
            return decode_master_key(settings.master_key.get_secret_value())
        except ValueError as error:
            raise KeysUnusable(f"HOLDFAST_MASTER_KEY: {error}") from error
    if settings.master_key_file is not None:
        return read_master_key(settings.master_key_file)
    return folder_master_key(settings.data, entropy, may_make=not has_keys)


def identities_file(data: Path) -> Path:
    """Where users and keys lie. A folder that has lost them must not begin with a new key. Raises KeysUnusable."""
    file = data / IDENTITIES_FILE
    if not file.exists() and (data / CATALOG_FILE).exists():
        raise KeysUnusable(
            f"{data} has queues, but its users and keys in {IDENTITIES_FILE} are missing; "
            "restore a backup, or make new ones with holdfast credentials add"
        )
    return file
