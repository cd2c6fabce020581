"""The master key: 32 bytes under which all other keys of a data folder are wrapped.

It comes from the environment (HOLDFAST_MASTER_KEY), from a named file, or from `master.key` in the
data folder, which is made at first start. Only the owner may have access to a file: one that others
can read protects nothing.
"""

from __future__ import annotations

import os
import stat
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

from auth.envelope import KEY_BYTES
from cluster.clock import Entropy
from storage.files.folder import sync_folder

FILE_NAME = "master.key"
NEW_FILE_NAME = "master.key.new"
"""Left by an interrupted `holdfast keys change-master`: then one of the two files fits."""
_OTHERS = stat.S_IRWXG & ~stat.S_IRGRP | stat.S_IRWXO
"""Mode bits that must not be set. A group may read: container platforms mount files that way."""


class KeysUnusable(Exception):
    """The keys of a data folder cannot be used; the text gives the reason in one line."""


class WrongMasterKey(KeysUnusable):
    """The keys of a data folder are under another master key."""


def decode_master_key(text: str) -> bytes:
    """The key in its text form: base64 of 32 bytes, URL-safe or not. Raises ValueError."""
    plain = text.strip().replace("+", "-").replace("/", "_")
    try:
        secret = urlsafe_b64decode(plain.encode("ascii"))
    except ValueError:  # from the padding, or a character that is not ASCII
        secret = b""
    if len(secret) != KEY_BYTES:
        raise ValueError(
            f"must be base64 of {KEY_BYTES} bytes, for example from: openssl rand -base64 32"
        )
    return secret


def encode_master_key(secret: bytes) -> str:
    """The key's text form."""
    return urlsafe_b64encode(secret).decode()


def read_master_key(file: Path) -> bytes:
    """The key in a file. Raises KeysUnusable."""
    try:
        mode = file.stat().st_mode
        if mode & _OTHERS:
            raise KeysUnusable(
                f"master key {file} is open to others (mode {stat.S_IMODE(mode):o}); make it 600"
            )
        return decode_master_key(file.read_text(encoding="ascii"))
    except OSError as error:
        raise KeysUnusable(f"cannot read master key {file}: {error.strerror}") from error
    except ValueError as error:
        raise KeysUnusable(f"master key {file} is damaged: {error}") from error


def write_master_key(file: Path, secret: bytes) -> None:
    """Make the file, readable by its owner; a crash leaves either none or a whole one, and an
    existing one stays.

    Raises OSError.
    """
    draft = file.with_name(f"{file.name}.{os.getpid()}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="ascii") as stream:
        stream.write(encode_master_key(secret))
        stream.flush()
        os.fsync(stream.fileno())
    with suppress(FileExistsError):  # another process was first
        os.link(draft, file)
    draft.unlink()
    sync_folder(file.parent)


async def replace_master_key(
    folder: Path, secret: bytes, wrap_anew: Callable[[Callable[[], None]], Awaitable[None]]
) -> None:
    """Replace `master.key`, after `wrap_anew` brought the keyring under the new key.

    `wrap_anew` calls its argument before anyone can see a change: then the new key lies beside the
    old one, so a crash leaves one of the two that fits. Raises KeysUnusable, and the
    errors of `wrap_anew`.
    """
    file, new = folder / FILE_NAME, folder / NEW_FILE_NAME

    def keep() -> None:
        new.unlink(missing_ok=True)
        write_master_key(new, secret)

    try:
        await wrap_anew(keep)
        with suppress(FileNotFoundError):  # another process found the new key and moved it
            new.replace(file)
        sync_folder(folder)
    except OSError as error:
        raise KeysUnusable(f"cannot replace master key {file}: {error.strerror}") from error


def folder_master_key(folder: Path, entropy: Entropy, *, may_make: bool) -> bytes:
    """The key of `master.key` in a data folder; with `may_make`, made if missing. Raises
    KeysUnusable."""
    file = folder / FILE_NAME
    if may_make and not file.exists():
        try:
            write_master_key(file, entropy.secret(KEY_BYTES))
        except OSError as error:
            raise KeysUnusable(f"cannot make master key {file}: {error.strerror}") from error
    return read_master_key(file)
