"""Opens the keys of a host or of the cluster, under the master key that the settings give."""

from __future__ import annotations

from collections.abc import Callable

from cluster.clock import Clock, Entropy
from cluster.coordination.coordination import Coordination, Unavailable
from cluster.keys.key_records import PREFIX, ROOT, SECRETS
from cluster.keys.keyring import DIGESTS, Keyring, KeysAway
from cluster.keys.master_key import FILE_NAME as MASTER_FILE
from cluster.keys.master_key import (
    NEW_FILE_NAME,
    KeysUnusable,
    WrongMasterKey,
    decode_master_key,
    folder_master_key,
    read_master_key,
)
from cluster.keys.spare_blocks import SpareBlocks
from sqs_api.settings.config import Settings
from storage.files.folder import sync_folder

Below = Callable[[str], Coordination]
"""The records of one kind, such as `keyring/`, of those of a host or a cluster."""


async def open_keyring(
    settings: Settings,
    below: Below,
    clock: Clock,
    entropy: Entropy,
    *,
    owner: str = "",
    founds: bool = True,
    spares: SpareBlocks | None = None,
) -> Keyring:
    """Open or make the keys; for the flags and `spares` see Keyring. Raises KeysUnusable."""

    async def opened(master: bytes) -> Keyring:
        return await Keyring.open(
            below(PREFIX),
            master,
            clock,
            entropy,
            owner=owner,
            founds=founds,
            is_shared=not settings.is_alone,
            spares=spares,
        )

    given = given_master_key(settings)
    if given is None:
        may_make = not await _has_keys(below(PREFIX))
        given = folder_master_key(settings.data, entropy, may_make=may_make)
    try:
        return await opened(given)
    except WrongMasterKey as error:
        new = settings.data / NEW_FILE_NAME
        if _given(settings) is not None or not new.exists():
            raise KeysUnusable(_expected(settings)) from error
        keyring = await opened(read_master_key(new))
        new.replace(settings.data / MASTER_FILE)
        sync_folder(settings.data)
        return keyring


async def _has_keys(keyring: Coordination) -> bool:
    found = await keyring.read([ROOT, SECRETS + DIGESTS])
    if isinstance(found, Unavailable):
        raise KeysAway(f"cannot read the keys: {found.reason}")
    return bool(found.records)


def _given(settings: Settings) -> str | None:
    """The name of the master key that the settings give; None if it is the folder's own."""
    if settings.master_key is not None:
        return "HOLDFAST_MASTER_KEY"
    return None if settings.master_key_file is None else f"master key {settings.master_key_file}"


def _expected(settings: Settings) -> str:
    """The refusal of a master key that does not fit."""
    if settings.etcd is not None:
        return (
            f"{_given(settings)} is not the master key of cluster {settings.cluster}: expected is "
            "the one of its other hosts, or of the last holdfast keys change-master"
        )
    given, own = _given(settings), settings.data / MASTER_FILE
    wrong = f"{given or own} is not the master key of {settings.data}"
    expected = "expected is the one of its first start, or of the last holdfast keys change-master"
    if given is not None and own.exists():
        expected += f"; without a given one, {own} is used"
    return f"{wrong}: {expected}"


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
